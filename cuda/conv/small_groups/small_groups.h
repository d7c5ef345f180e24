// Convolutions with few channels a group, any stride and dilation: what the host decides and the kernels of
// gather.cuh and weight.cuh read.
//
// Forward and backward_input are one operation. A result channel at position q * phases + phase is a sum over source
// channels and the taps of that phase, at source position q * step + offset(tap):
//
//   forward:         step = stride, one phase, every tap;                       offset = tap * dilation - padding
//   backward_input:  step = 1, phases = stride, the taps that fall on a source  offset = (phase + padding
//                    position there                                                       - tap * dilation) / stride
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <cstdint>

#include "../../device/fast_divide.h"
#include "../row_box.h"

namespace halo::cuda::conv::small_groups {

inline constexpr int kMostPhases = 8;     ///< of an axis
inline constexpr int kMostAxisTaps = 12;  ///< of an axis
inline constexpr int kChannelBlock = 4;   ///< source channels in one unit of the sum
inline constexpr int kSegment = 16;       ///< neighbouring positions in one tensor-core tile

/// The taps of each phase of one axis, with offsets counted from the first one that any of them reads.
struct AxisTaps {
  int16_t count[kMostPhases];
  int16_t tap[kMostPhases][kMostAxisTaps];
  int32_t offset[kMostPhases][kMostAxisTaps];
};

/// The block's share of the positions, and the source they read. Index 0, 1, 2: depth, height, width.
struct GroupTile {
  int positions[3];  ///< q of a block; the width is a multiple of kSegment
  int extent[3];     ///< source rows and columns those read
  RowBox box;        ///< planes: channels; 32 or 16 bytes apart modulo 128, so that a warp's operand meets most banks
};

/// Sizes of one pass, axes merged where the kernel does not touch them.
struct GroupSizes {
  int64_t batch;
  int groups;
  int source_channels, result_channels;  ///< of a group
  int source[3], result[3];              ///< extents
  int phases[3];
  int origin[3];                                       ///< source position of the first offset of q = 0
  int64_t weight_group, weight_result, weight_source;  ///< pitches of the weight; taps are contiguous
};

struct GroupProblem : GroupSizes {
  RowSource source_rows, result_rows;  ///< planes: channels
  int kernel[3], step[3];
  AxisTaps taps[3];
  int tap_pitch[3];
};

/// A GroupProblem on blocks. A block belongs to one group and walks over tiles of all images.
struct GatherPlan {
  GroupProblem problem;
  GroupTile tile;
  int warps = 8;
  int row_tiles = 4;     ///< 16-position tiles a warp works on at once
  int column_tiles = 1;  ///< 8-channel tiles a warp works on at once
  int channel_blocks;    ///< ceil(source_channels / kChannelBlock)
  int result_tiles;      ///< ceil(result_channels / 8), up to a multiple of column_tiles
  int units;             ///< entries of the unit table
  int row_groups;        ///< groups of row_tiles neighbouring segments in the tile; none crosses a row
  int buffers = 1;       ///< tiles in shared memory: with 2, the next one arrives while this one is used
  int slots;             ///< blocks of a group
  FastDivide tiles[3];   ///< tiles along each axis
  // Row groups in a row, rows and depths of the tile, groups of column tiles, phases of the height: the order of items.
  FastDivide by_row, by_height, by_depth, by_column, by_phase;
  int64_t tile_count;  ///< over the batch
  int64_t blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

/// backward_weight. A block owns one group and a set of weights, and adds up tiles of positions.
struct WeightPlan {
  GroupProblem problem;  ///< of the forward pass
  GroupTile x, y;
  int warps = 8;
  int row_tiles = 7;     ///< 16-row tiles a warp owns; rows are (tap, source channel)
  int column_tiles = 1;  ///< 8-column tiles a warp owns; columns are result channels
  int set_channels;      ///< source channels a block works on; divides source_channels
  int rows;              ///< taps * set_channels
  int row_groups, column_groups;
  int position_splits;  ///< warps that share one set of weights and divide the positions
  int item_sets;        ///< blocks that share one tile and divide the row and column groups
  int sets;             ///< item_sets * source_channels / set_channels
  int splits;           ///< blocks that share one set of weights and divide the tiles
  int buffers;          ///< tiles in shared memory: 2 where they fit
  FastDivide tiles[3];
  FastDivide by_row, by_plane;  ///< steps of 8 positions in a row and in a plane of the tile
  int64_t tile_count;           ///< over the batch
  int64_t blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

/// Whether `problem` fits the limits of small_groups.cu, apart from dtype.
bool small_groups_fit(const ConvProblem& problem);
/// At most 16 channels a group on either side, or 4 on one.
bool few_channels(const ConvProblem& problem);

/// `forward`: that pass, or backward_weight; else backward_input.
GroupProblem group_problem(const ConvProblem& problem, bool forward);

/// The plan with the least predicted time; `blocks` is 0 if there is none.
GatherPlan gather_plan(const ConvProblem& problem, const ConvConfig& config);
WeightPlan weight_plan(const ConvProblem& problem, const ConvConfig& config);

template <class T>
struct GatherArguments {
  const T* source;
  const T* weight;
  const T* bias;  ///< forward only, or null
  T* result;
  Activation activation;
};

template <class T>
struct WeightArguments {
  const T* x;
  const T* y;        ///< upstream gradient
  double* partials;  ///< [weights, splits]
};

}  // namespace halo::cuda::conv::small_groups
