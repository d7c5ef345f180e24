// Convolution with the lanes of a vector along the channels of the result, so that any width, stride and dilation fills
// them: in register tiles (Tile of isa.h), straight from padded copies of a few planes. Nothing is gathered.
#pragma once

#include "conv_correlation.h"
#include "isa.h"

namespace halo::cpu {

/// Whether `channels` a group fill the lanes at least halfway; conv_lines.h otherwise.
inline bool fills_tiles(int64_t channels) { return 2 * channels >= kernels().lanes; }
void correlate_tiles(const Correlation& q, const CorrelationData& data);

/// Gradient of the weight [out_channels, in_channels / groups, taps]; lanes are output channels.
void weight_gradient_tiles(const ConvProblem& p, const float* x, const float* g, float* w);

}  // namespace halo::cpu
