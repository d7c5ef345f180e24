// Convolution with the lanes of a vector along the channels of the result, so that any width, stride and dilation fills
// them: in register tiles (Tile of isa.h), straight from padded copies of a few planes. Nothing is gathered.
#pragma once

#include "conv_correlation.h"
#include "isa.h"

namespace halo::cpu {

/// Whether `channels` a group fill the lanes at least halfway; conv_lines.h otherwise.
template <class T>
bool fills_tiles(int64_t channels) {
  return 2 * channels >= kernels<T>().lanes;
}

template <class T>
void correlate_tiles(const Correlation& q, const CorrelationData<T>& data);

/// Gradient of the weight [out_channels, in_channels / groups, taps]; lanes are output channels.
template <class T>
void weight_gradient_tiles(const ConvProblem& p, const T* x, const T* g, T* w);

}  // namespace halo::cpu
