// Convolution in register tiles (Tile of isa.h) straight from padded copies of a few planes: nothing is gathered. The
// lanes of a vector are channels, so that any width, stride and dilation fills them.
#pragma once

#include <halo/ops/activation.h>
#include <halo/ops/conv_problem.h>

#include "isa.h"

namespace halo::cpu {

/// Whether `channels` fill the lanes of a vector at least halfway: channels a group of what a pass computes, which is
/// the output for tile_forward and tile_backward_weight, the input for tile_backward_input.
template <class T>
bool fills_tiles(int64_t channels) {
  return 2 * channels >= tile_kernels<T>().lanes;
}

template <class T>
void tile_forward(const ConvProblem& p, const T* x, const T* w, const T* bias, const Activation& activation, T* y);
template <class T>
void tile_backward_input(const ConvProblem& p, const T* g, const T* w, const T* bias, T* x);
template <class T>
void tile_backward_weight(const ConvProblem& p, const T* x, const T* g, T* w);

}  // namespace halo::cpu
