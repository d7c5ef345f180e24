// How a depthwise convolution with unit stride and dilation is laid over threads.
//
// A thread owns one 16-byte vector of result columns and marches along the outermost axis on which the kernel has more
// than one tap, keeping the partial results of the rows in reach. Each source row is read once a thread.
//
//   case  kernel        marches along    rows read a step   folded into the planes
//   1     1 x 1 x k     blocks of width  1                  depth, height
//   2     1 x h x k     height           1                  depth
//   3     d x h x k     depth            h                  -
#pragma once

#include <halo/ops/conv_problem.h>

#include <cstdint>

#include "../device/fast_divide.h"

namespace halo::cuda::conv::depthwise {

inline constexpr int kMarchThreads = 128;

/// Taps along the march axis, along the inner axis, and along the width.
struct MarchShape {
  int march = 1;
  int inner = 1;
  int width = 1;
  bool operator==(const MarchShape&) const = default;
};

/// One of the two activations; lengths in elements.
struct MarchSide {
  int march = 1;  ///< rows along the march axis
  int inner = 1;
  int width = 1;
  int64_t march_pitch = 0;
  int64_t inner_pitch = 0;
  int64_t slice = 0;  ///< from one (plane, fold) to the next
};

/// Source: the side read through the window (x of the form, or y for backward_input). Result: the other one, whose
/// positions threads own. Plain data, passed to kernels by value.
struct MarchGeometry {
  MarchSide source, result;
  int pad_march = 0, pad_inner = 0, pad_width = 0;
  int strip = 1;        ///< result rows a thread marches over
  int column_step = 0;  ///< case 1: columns between a thread's steps; else 0
  FastDivide columns, inner, strips, fold;
  int64_t tasks_per_plane = 0;  ///< columns * inner * strips * fold
};

/// The taps of `problem`, if its strides and dilations are 1 wherever they matter and each folded axis is passed
/// through unchanged; else all zero.
MarchShape march_shape(const ConvProblem& problem);

/// `flipped`: backward_input, the roles of the two sides exchanged. `vector` is the columns a thread owns; strips are
/// cut to at most `longest_strip` rows, shorter where that leaves the device idle.
MarchGeometry march_geometry(const ConvProblem& problem, bool flipped, int vector, int longest_strip);

/// Every extent fits the 31-bit arithmetic of the kernels.
bool march_fits(const ConvProblem& problem);

}  // namespace halo::cuda::conv::depthwise
