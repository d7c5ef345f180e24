// How a depthwise convolution with unit stride and dilation is laid over blocks and threads.
//
// A block copies a box of source rows into shared memory and computes the results they feed. A thread owns the result
// columns of one or two words and marches along the outermost axis on which the kernel has more than one tap, keeping
// the partial results of the rows in reach.
//
//   case  kernel        marches along         rows read a step   folded into the planes
//   1     1 x 1 x k     the width, in steps   1                  depth, height
//   2     1 x h x k     height                1                  depth
//   3     d x h x k     depth                 h                  -
#pragma once

#include <halo/ops/conv_problem.h>

#include <cstdint>

#include "row_box.h"

namespace halo::cuda::conv::depthwise {

inline constexpr int kMarchThreads = 256;

/// Taps along the march axis, along the inner axis, and along the width.
struct MarchShape {
  int march = 1;
  int inner = 1;
  int width = 1;
  bool operator==(const MarchShape&) const = default;
};

/// One of the two activations; pitches in elements.
struct MarchSide {
  RowSource rows;           ///< outer: along the march axis
  int64_t slice = 0;        ///< from one (plane, fold) to the next
  int64_t outer_pitch = 0;  ///< see MarchGeometry
};

/// Source: the side read through the window (x of the form, or y for backward_input). Result: the other one, whose
/// positions threads own. Plain data, passed to kernels by value.
///
/// Slices are counted along two axes. Forward and backward_input: all of them along the first. backward_weight, whose
/// blocks have one channel: the batch or, where axes are folded, these along the first and the batch along the second.
struct MarchGeometry {
  MarchSide source, result;
  int pad_march = 0, pad_inner = 0, pad_width = 0;
  int planes = 1;               ///< slices of a block; more than one only where it has them whole
  int strip = 1;                ///< rows of a thread; case 1: steps along the width
  int column_step = 0;          ///< case 1: columns from one step to the next; else 0
  int threads = kMarchThreads;  ///< of a block
  FastDivide words, inner;      ///< results of a step: threads along the width, and inner rows
  int step_columns = 1;         ///< columns of those
  FastDivide column_tiles, inner_tiles, strips, plane_tiles;
  int64_t plane_count = 1, outer_count = 1;
  int64_t tiles = 0;  ///< over all slices
  FastDivide fold;
  RowBox source_box, result_box;
};

/// The taps of `problem`, if its strides and dilations are 1 wherever they matter and each folded axis is passed
/// through unchanged; else all zero.
MarchShape march_shape(const ConvProblem& problem);

/// The geometry of `pass`: for BackwardWeight, the planes of one channel; else all planes.
MarchGeometry march_geometry(const ConvProblem& problem, ConvPass pass, int element_size);

/// Every extent fits the 31-bit arithmetic of the kernels.
bool march_fits(const ConvProblem& problem);

}  // namespace halo::cuda::conv::depthwise
