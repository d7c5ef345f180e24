// Geometry of the dense weight-gradient kernel, in plain C++: how a problem becomes a matrix product, how the product
// is cut into blocks and stages, and where each operand lies in a stage. dense_weight.cuh executes it.
//
//   partial[column][row] = sum over positions of gathered(row, position) * streamed(column, position)
//
// As the problem is given, rows are (input channel, tap) of x, columns are output channels of y and positions are those
// of y. Two rewritings fill the tensor core better where channels are few:
//   swap  with stride 1, x and y change places: rows are (output channel, mirrored tap) of y, columns input channels of
//   x,
//         positions those of x;
//   fold  all taps of one axis (depth or height, stride 1 there) move from the rows to the columns: column (tap,
//   channel)
//         is y shifted by that tap, and positions along the axis are those of x.
#pragma once

#include <halo/ops/conv_problem.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace halo::cuda::conv {

inline constexpr int kMaxSteps = 8;           ///< k8 steps (8 positions each) of one stage
inline constexpr int kTileRows = 64;          ///< rows of one wgmma
inline constexpr int kTilesPerWarpgroup = 2;  ///< at most, see DenseWeightTile
inline constexpr int kMaxStages = 4;
inline constexpr int kConsumers = 3;          ///< warpgroups that multiply; one more loads
inline constexpr int kCoreMatrixPitch = 144;  ///< bytes: 128 of data, 16 so that a store along K meets every bank
inline constexpr int kColumnGroupPitch = 2 * kMaxSteps * kCoreMatrixPitch;  ///< bytes of 8 columns of a stage
inline constexpr int kLineEntryBytes = 16;   ///< of the table of a block's gathered lines
inline constexpr int kColumnEntryBytes = 8;  ///< of the table of its columns
inline constexpr int kMostColumns = 128;
inline constexpr int kMostFoldedTaps = 31;
/// Barriers and masks of the pipeline, and the column table.
inline constexpr std::size_t kFixedSharedBytes = kMaxStages * (8 + 8 + 16) + kMostColumns * kColumnEntryBytes;
inline constexpr std::size_t kSharedLimit = 227 * 1024;

/// Everything the kernel needs beside pointers. Extents are (depth, height, width); strides count floats.
struct DenseWeightGeometry {
  /// The gathered operand: coordinate = position * stride - pad + tap * dilation.
  struct Gathered {
    int64_t batch, group, channel;  ///< strides
    int extent[3];
    int stride[3], pad[3];
    int step[3];               ///< distance in the tensor of neighbouring stored planes, lines, words
    int planes, lines, words;  ///< stored a channel; words includes `lead`
    int lead;                  ///< words before the first one needed, so that 16-byte copies are aligned
    int vector;                ///< words a copy moves: 4 or 1
    int lanes;                 ///< threads that share one line: 8, 16 or 32
    int line_pitch, plane_pitch, channel_pitch;  ///< words in shared memory
    int channels;                                ///< channels a block stores, at most
  } gathered;

  /// The streamed operand: coordinate = position, and along the folded axis position + fold_pad - tap * fold_dilation.
  struct Streamed {
    int64_t batch, group, channel;
    int extent[3];
    int channels;  ///< of one group
    int vector;    ///< 4 or 1
  } streamed;

  int fold_axis;  ///< 0 or 1; -1 where no axis is folded
  int fold_taps, fold_pad, fold_dilation;

  int positions[3];  ///< extents of the sum
  int64_t batch;
  int step_rows, row_steps;         ///< a stage is step_rows lines of row_steps k8 steps
  int steps;                        ///< their product
  int row_blocks, column_blocks_w;  ///< stages along height and width
  int64_t stages;                   ///< of the whole sum

  int row_taps[3];             ///< taps along each axis that are rows
  int taps;                    ///< their product
  int tap_offset[3];           ///< words between neighbouring taps
  int position_words;          ///< words between neighbouring positions of a line
  int step_offset[kMaxSteps];  ///< words from a stage's first position to that of each k8 step

  int rows, columns;  ///< of one group
  int row_tiles;      ///< ceil(rows / 64)
  int m_blocks, n_blocks, groups, splits;
  int flush_stages;    ///< stages after which sums move to float64
  int pipeline;        ///< stages in flight
  int streamed_bytes;  ///< of one stage, high and low together
  int gathered_bytes;  ///< of one stage
};

/// A geometry, the tile that runs it and what it costs.
struct DenseWeightPlan {
  bool valid = false;
  bool swapped = false;
  bool split = true;  ///< float32-accurate: operands split into high and low parts
  int tile_columns = 0;
  double milliseconds = 0;
  std::size_t shared_bytes = 0;
  std::size_t workspace_bytes = 0;
  int64_t blocks = 0;
  DenseWeightGeometry geometry{};
};

/// The cheapest plan for `problem` by the cost model; `valid` is false where no plan exists. `alignment` in bytes, of
/// both operands' addresses.
DenseWeightPlan plan_dense_weight(const ConvProblem& problem, bool split, int alignment, int multiprocessors);

#ifdef __CUDACC__
#define HALO_HOST_DEVICE __host__ __device__
#else
#define HALO_HOST_DEVICE
#endif

/// Where element `index` of [group][column][row] lies in the weight gradient.
HALO_HOST_DEVICE inline int64_t dense_weight_element(const DenseWeightGeometry& g, bool swapped, int64_t index) {
  const int row = static_cast<int>(index % g.rows);
  index /= g.rows;
  const int column = static_cast<int>(index % g.columns);
  const int64_t group = index / g.columns;
  const int gathered = row / g.taps, streamed = column % g.streamed.channels;
  int tap = row % g.taps, extent[3] = {g.row_taps[0], g.row_taps[1], g.row_taps[2]};
  int at[3] = {tap / (extent[1] * extent[2]), tap / extent[2] % extent[1], tap % extent[2]};
  if (g.fold_axis >= 0) {
    extent[g.fold_axis] = g.fold_taps;
    at[g.fold_axis] = column / g.streamed.channels;
  }
  int64_t position = 0;
  for (int a = 0; a < 3; ++a) position = position * extent[a] + (swapped ? extent[a] - 1 - at[a] : at[a]);
  const int rows = g.rows / g.taps;
  const int64_t channels = swapped ? (group * rows + gathered) * g.streamed.channels + streamed
                                   : (group * g.streamed.channels + streamed) * rows + gathered;
  return channels * extent[0] * extent[1] * extent[2] + position;
}

/// 64-row tiles one warpgroup holds when a block has `columns` columns.
constexpr int dense_weight_row_tiles(int columns) { return columns <= 64 ? 2 : 1; }

}  // namespace halo::cuda::conv
