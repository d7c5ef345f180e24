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
#include <type_traits>

#include "../row_box.h"

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
  int line = 16;  ///< bytes: modulo these, addresses in the boxes are congruent to those in the tensors
};

/// The taps of `problem`, if its strides and dilations are 1 wherever they matter and each folded axis is passed
/// through unchanged; else all zero.
MarchShape march_shape(const ConvProblem& problem);

/// The geometry of `pass`: for BackwardWeight, the planes of one channel; else all planes.
MarchGeometry march_geometry(const ConvProblem& problem, ConvPass pass, int element_size);

inline constexpr int kBandColumns = 128;  ///< neighbouring results of a row that a warp makes at once
inline constexpr int kBandReach = 10;     ///< columns behind those that it reads, multiplied by 0 or shifted away

/// Forward and backward_input of half types: a block's items of work are (slice, part of the rows, group of
/// kBandColumns columns), one a warp, the last fastest.
struct BandGeometry {
  MarchGeometry march;
  int width = 1;  ///< taps of a row
  int rows = 1;   ///< of a part
  FastDivide groups, parts;
};

/// For kernels with one row of taps along the inner axis.
BandGeometry band_geometry(const ConvProblem& problem, ConvPass pass);

/// backward_weight of half types, one row of taps: a block has a tile of one channel, x and y, as matrices in shared
/// memory whose rows begin at multiples of 16 bytes: pieces of one long row or, where rows are short, those of all
/// slices.
struct HalfWeightGeometry {
  struct Side {
    int64_t row_pitch = 0;  ///< elements, of the tensor
    int64_t plane_pitch = 0, outer_pitch = 0, channel_pitch = 0;
    int height = 1, width = 1;
    int rows = 1;     ///< of the matrix
    int vector = 2;   ///< elements of one copy; divides the width
    int vectors = 0;  ///< copies of a row
    int bytes = 0;    ///< in shared memory
  };
  Side x, y;
  int width = 1;               ///< taps
  int pitch = 0;               ///< bytes from row to row of both matrices; an odd number of granules, for the banks
  int row_blocks = 1;          ///< of 16 rows; 1, 2, 4 or 8
  int column_blocks = 1;       ///< of 8 columns
  int strip = 1, columns = 1;  ///< rows and columns of y from one tile to the next
  int piece = 0;               ///< columns from one row of a matrix to the next, where rows are pieces of one long row
  int shift = 0;               ///< tap k of column c of y reads column c + k + shift of the matrix of x
  int pad_columns = 0;         ///< column 0 of the matrix of x lies so far before that of y
  FastDivide column_tiles, strips, planes;
  int64_t splits = 0;  ///< blocks of a channel; 0: no kernel for this
};

/// `alignment`: of both tensors, bytes.
HalfWeightGeometry half_weight_geometry(const ConvProblem& problem, int alignment);

/// Calls f(integral_constant of `march`) if there are kernels for so many rows of taps; else false.
template <class F>
bool with_march(int march, F&& f) {
  switch (march) {
    case 3: return f(std::integral_constant<int, 3>{}), true;
    case 5: return f(std::integral_constant<int, 5>{}), true;
    case 7: return f(std::integral_constant<int, 7>{}), true;
    default: return false;
  }
}

/// Where only the depth has taps, the same convolution of images whose rows are whole planes: taps of the height.
ConvProblem depth_as_height(const ConvProblem& problem);

/// Every extent fits the 31-bit arithmetic of the kernels.
bool march_fits(const ConvProblem& problem);

}  // namespace halo::cuda::conv::depthwise
