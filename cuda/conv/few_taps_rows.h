// Transposed convolutions (input gradients with a stride) whose results have one tap of an axis or none, and many
// of whose rows have none: what the host decides and few_taps_rows_kernel.cuh reads.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <cstddef>
#include <cstdint>

#include "../device/fast_divide.h"
#include "small_groups.h"

namespace halo::cuda::conv::few_taps_rows {

inline constexpr int kTaps = 3;             ///< of the width
inline constexpr int kSourceChannels = 32;  ///< at most
inline constexpr int kChunk = 16;           ///< source positions that a warp works on at once
inline constexpr int kMostWarps = 12;       ///< that multiply
inline constexpr int kLoaders = 4;          ///< warps that copy the source
inline constexpr int kStorers = 2;          ///< warps of a stage that give the copy engine its orders
inline constexpr int kStages = 2;           ///< items in shared memory
inline constexpr int kLine = 128;           ///< bytes; the copy engine writes whole ones,
inline constexpr int kBeside = 32;          ///< from as far behind 32 bytes, else it is a third slower
inline constexpr int kZeroBytes = 4 << 10;  ///< a copy of zeros
inline constexpr int kBarrierBytes = 128;

inline constexpr int kThreads = (kMostWarps + kLoaders + kStages * kStorers) * 32;
inline constexpr int kRegisters = 120, kLoaderRegisters = 40, kStorerRegisters = 80, kLaunchRegisters = 96;
static_assert(kMostWarps % 4 == 0 && kLoaders == 4 && kStages * kStorers == 4);  // warpgroups, which share registers
static_assert(kMostWarps * kRegisters + 4 * (kLoaderRegisters + kStorerRegisters) == kThreads / 32 * kLaunchRegisters);

/// Of eight result channels, of an item: as many bytes of half types as of float32.
constexpr int channel_tiles(std::size_t element_size) { return element_size == 2 ? 2 : 1; }

/// Neighbouring rows of an item, all with taps or all without.
struct Run {
  int first, rows;
  bool tapped;
  int stage;  ///< element of a channel's stage where there is room for it, for what precedes it in a line and follows
};

/// A row with taps.
struct TappedRow {
  int row;     ///< of the item
  int tap;     ///< element of the weights
  int source;  ///< row of the item's source
  int run;
};

/// An item: result rows from q * phases - rotation on to the next item's, of some channels of an image. It begins with
/// rows without taps and ends with one with taps, so that all rows with taps have zeros before and behind them.
struct Plan {
  small_groups::GroupProblem problem;
  int taps, tap[kTaps], shift[kTaps];  ///< source position p reaches result column p * stride + shift
  int least_shift, most_shift;
  int rotation, runs, tapped;
  Run run[small_groups::kMostPhases];
  TappedRow tapped_row[small_groups::kMostPhases];
  int source_first, source_rows;       ///< of an item, from row q on
  int stage_pitch, source_pitch;       ///< elements; of result and source channels
  bool aligned;                        ///< the source's rows are whole 16 bytes
  FastDivide heights, depths, images;  ///< items of a slice, slices of a plane, planes of a group of channels
  FastDivide depth_phases;
  int shares;  ///< warps that share a row
  int64_t items, blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

}  // namespace halo::cuda::conv::few_taps_rows
