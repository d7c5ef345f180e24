// Geometry of the dense weight-gradient kernel, in plain C++: how a problem becomes a matrix product, how the product
// is cut into blocks and stages, and where each operand lies in a stage. dense_weight.cuh executes it.
//
//   partial[column][row] = sum over positions of gathered(row, position) * streamed(column, position)
//
// As the problem is given, rows are (input channel, tap) of x, columns are output channels of y and positions are those
// of y. Two rewritings fill the tensor core better where channels are few:
//   swap  with stride 1, x and y change places: rows are (output channel, mirrored tap) of y, columns input channels of
//         x, positions those of x;
//   fold  all taps of one axis (depth or height, stride 1 there) move from the rows to the columns: column (tap,
//   channel)
//         is y shifted by that tap, and positions along the axis are those of x.
//
// Both operands are fetched by the copy engine as boxes (positions x channels) of a matrix whose rows are flat channel
// planes. A row's pitch must be a multiple of 16 bytes: where a plane's is not, `period` (2 or 4) channels share a row,
// and one box becomes `period` boxes, one for each channel modulo the period. A box's corner must be a multiple of 16
// bytes too: it is moved down to one, so that a line begins 0 to 3 words into its box, as its flat index in the tensor
// modulo 4 says. Words are elements: of half types there are eight in 16 bytes, and what says 4 here is 8.
//
// The tensor core wants the streamed operand as tiles of 32 positions (a line of 128 bytes a column) whose 16-byte
// pieces are exchanged by the column modulo 8. Where all columns begin at the same word of their boxes (`direct`), the
// copy engine writes such tiles itself, and what a line's first box holds before the line are positions that do not
// exist. Else the boxes are fetched as they lie and converted.
#pragma once

#include <halo/core/host_device.h>
#include <halo/ops/conv_problem.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace halo::cuda::conv {

inline constexpr int kMaxSteps = 8;   ///< k8 steps (8 positions each) of one stage
inline constexpr int kTileRows = 64;  ///< rows of one wgmma
inline constexpr int kMaxStages = 6;  ///< of any of the pipeline's rings
inline constexpr int kConsumers = 3;  ///< warpgroups that multiply; one more loads
inline constexpr int kMostColumns = 128;
inline constexpr int kMostFoldedColumns = 192;  ///< TF32 alone: float32-accurate, partial sums take registers too
inline constexpr int kMostFoldedTaps = 31;
/// Barriers and notes of the pipeline.
inline constexpr std::size_t kFixedSharedBytes = kMaxStages * (5 * 8 + 16);
inline constexpr std::size_t kSharedLimit = 227 * 1024;
/// Float64 sums that fit the workspace.
inline constexpr int64_t kMostPartialSums = (int64_t{256} << 20) / 8;

/// Bytes of 4 k8 steps of a streamed tile: a line of 32 positions a column.
HALO_HOST_DEVICE constexpr int chunk_bytes(int columns) { return columns * 128; }
/// 64-row tiles one warpgroup holds when a block has `columns` columns.
HALO_HOST_DEVICE constexpr int dense_weight_row_tiles(int columns) { return columns <= 64 ? 2 : 1; }

/// An operand as the copy engine sees it.
struct PlaneMatrix {
  int granule;       ///< elements of 16 bytes: 4 of float32, 8 of half types
  int period;        ///< channels that share a row: a power of two up to the granule
  int period_log;    ///< of two
  int64_t plane;     ///< elements of one channel
  int64_t channels;  ///< of the whole tensor, batch included
  int box_words;     ///< positions of a box
  int box_channels;  ///< channels of a box, of one residue modulo the period
  int box_pitch;     ///< words between boxes in shared memory, a multiple of 128 bytes

  /// Rows of the matrix. Channels beyond the last whole row (`tail()` on) are read by ordinary loads.
  int64_t matrix_rows() const { return channels < period ? 1 : channels / period; }
  int64_t row_channels() const { return channels < period ? channels : period; }
  HALO_HOST_DEVICE int64_t tail() const { return channels < period ? channels : channels & -int64_t{period}; }
  /// Word of channel `i` (counted from the block's first) in the boxes of one line.
  HALO_HOST_DEVICE int channel_word(int i) const {
    return (i & (period - 1)) * box_pitch + (i >> period_log) * box_words;
  }
};

/// Everything the kernel needs beside pointers. Extents are (depth, height, width).
struct DenseWeightGeometry {
  /// The gathered operand: coordinate = position * stride - pad + tap * dilation.
  PlaneMatrix gathered;
  int extent[3];
  int stride[3], pad[3], dilation[3];
  int line_step[2];   ///< distance in the tensor of neighbouring stored planes, and of their lines
  int planes, lines;  ///< that a stage needs of a channel
  int fresh;          ///< lines that it does not share with the stage above, whose other lines it finds in the ring
  int ring_lines;     ///< lines stored, of all planes; stages follow each other down a column of them
  int line_words;     ///< needed of each line, from the beginning of its first 16 bytes
  /// Words between the beginnings of stored lines, whole 16 bytes: not whole 128, so that lines meet different banks.
  /// The copy engine writes to multiples of 128 bytes, hence a line's box begins up to 112 bytes before the line, in
  /// the tensor as in the tile.
  int line_pitch;
  int channels;        ///< channels a block stores, at most
  int group_channels;  ///< of one group
  bool right_padding;  ///< whether windows reach beyond the end of a line

  /// The streamed operand: coordinate = position, and along the folded axis position + fold_pad - tap * fold_dilation.
  PlaneMatrix streamed;
  int streamed_extent[3];
  int streamed_channels;  ///< of one group
  int fold_axis;          ///< 0 or 1; -1 where no axis is folded
  int fold_taps, fold_pad, fold_dilation;

  int positions[3];  ///< extents of the sum
  int64_t batch;
  int step_rows, row_steps;       ///< a stage is step_rows lines of row_steps k8 steps
  int steps;                      ///< their product
  int row_blocks, column_blocks;  ///< stages along height and width
  int64_t stages;                 ///< of the whole sum

  int row_taps[3];             ///< taps along each axis that are rows
  int taps;                    ///< their product
  int tap_offset[3];           ///< words between neighbouring taps, before the ring's end is minded
  int position_words;          ///< words between neighbouring positions
  int step_offset[kMaxSteps];  ///< words from a stage's first position to that of each k8 step
  int step_shift[kMaxSteps];   ///< flat index of each k8 step's line modulo a granule, relative to the stage's first
  bool streamed_shift;         ///< whether streamed lines may begin inside their boxes' first 16 bytes
  bool direct;                 ///< the copy engine writes the tensor core's tiles
  int lead;                    ///< positions before a line's first that its first box may hold, if direct

  int rows, columns;  ///< of one group
  int row_tiles;      ///< ceil(rows / 64)
  int m_blocks, n_blocks, groups, splits;
  int flush_stages;  ///< stages after which sums move to float64

  /// Rings of the pipeline: streamed tiles of high parts, of low parts, raw streamed boxes, gathered lines. `tiles`
  /// stages are converted or multiplied while `ahead` more are fetched.
  int tiles, ahead;
  bool turns;  ///< whether the converting warps take turns at the stages, which is slower for the single stage
  int high_slots, low_slots, raw_slots;
  int part_bytes, raw_bytes;  ///< of one slot
  int gathered_bytes;         ///< of the whole ring

  HALO_HOST_DEVICE int raw_lines() const { return step_rows * fold_taps; }
  /// Whether a stage is one line, or each of its lines is whole groups of 4 steps.
  HALO_HOST_DEVICE bool walks() const { return step_rows == 1 || row_steps % 4 == 0; }
  /// Threads that make one stage ready.
  HALO_HOST_DEVICE int converters() const { return turns ? 32 : 64; }
  /// Of the ring that the copy engine fills with streamed boxes.
  HALO_HOST_DEVICE int box_slots() const { return direct ? high_slots : raw_slots; }
  /// Bytes of an element of the operands.
  HALO_HOST_DEVICE int element() const { return 16 / gathered.granule; }
  /// Words between lines of one plane in the ring.
  HALO_HOST_DEVICE int line_words_apart() const { return planes * line_pitch; }
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

/// The cheapest plan for `problem` by the cost model; `valid` is false where no plan exists. `aligned`: both operands
/// begin at multiples of 16 bytes. `element`: bytes of their elements.
DenseWeightPlan plan_dense_weight(const ConvProblem& problem, bool split, bool aligned, int multiprocessors,
                                  int element = 4);

/// Where element `index` (below kMostPartialSums) of [group][column][row] lies in the weight gradient.
HALO_HOST_DEVICE inline int64_t dense_weight_element(const DenseWeightGeometry& g, bool swapped, int64_t index) {
  const auto flat = static_cast<int>(index);
  const int row = flat % g.rows, column = flat / g.rows % g.columns;
  const int64_t group = flat / g.rows / g.columns;
  const int gathered = row / g.taps, streamed = column % g.streamed_channels;
  int tap = row % g.taps, extent[3] = {g.row_taps[0], g.row_taps[1], g.row_taps[2]};
  int at[3] = {tap / (extent[1] * extent[2]), tap / extent[2] % extent[1], tap % extent[2]};
  if (g.fold_axis >= 0) {
    extent[g.fold_axis] = g.fold_taps;
    at[g.fold_axis] = column / g.streamed_channels;
  }
  int64_t position = 0;
  for (int a = 0; a < 3; ++a) position = position * extent[a] + (swapped ? extent[a] - 1 - at[a] : at[a]);
  const int64_t channels = swapped ? (group * g.group_channels + gathered) * g.streamed_channels + streamed
                                   : (group * g.streamed_channels + streamed) * g.group_channels + gathered;
  return channels * extent[0] * extent[1] * extent[2] + position;
}

}  // namespace halo::cuda::conv
