// Transposed convolutions (input gradients with a stride) whose results have few taps, and many of them none: what the
// host decides and kernel.cuh reads. Phases and offsets are those of small_groups/small_groups.h.
#pragma once

#include <halo/core/host_device.h>
#include <halo/cuda/conv/algorithm.h>

#include <cstddef>
#include <cstdint>

#include "../../device/fast_divide.h"
#include "../small_groups/small_groups.h"

namespace halo::cuda::conv::few_taps {

inline constexpr int kTaps = 3;   ///< of the width, over all its phases; of depth and height one a phase
inline constexpr int kWarps = 4;  ///< of a block: the rows of the products are its result channels
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kWarpChannels = 16;    ///< result channels of a warp
inline constexpr int kChannels = 32;        ///< of the source
inline constexpr int kChunk = 64;           ///< positions that the block works on at once
inline constexpr int kLine = 32;            ///< bytes; the copy engine writes whole ones, or it is a third slower
inline constexpr int kSkew = 64;            ///< bytes; rows lie in shared memory as in memory modulo these, likewise
inline constexpr int kRuns = 5;             ///< source positions of an item, in runs of a warp
inline constexpr int kZeroBytes = 4 << 10;  ///< a copy of zeros

/// Blocks of a multiprocessor, as there are registers.
HALO_HOST_DEVICE constexpr int blocks_of(int element_size) { return element_size == 4 ? 2 : 3; }

struct Plan {
  small_groups::GroupProblem problem;
  int taps, tap[kTaps], phase[kTaps], offset[kTaps];  ///< of the width, phase by phase
  bool last[kTaps];                                   ///< of its phase
  int positions;                                      ///< q of a row in an item
  int source_rows;                                    ///< source positions that they read
  int piece_pitch;                                    ///< bytes; from 16 bytes of a position's channels to the next
  int part_bytes;                                     ///< from the large parts of the source to the small ones
  int stage_pitch;                                    ///< elements; of result channels
  int outer[small_groups::kMostPhases * small_groups::kMostPhases];  ///< phases of depth and height: with taps first
  FastDivide images, tiles[3];                                       ///< q; of the width in items
  int tapped;                                                        ///< of `outer`
  int items, empty_rows;
  int own;    ///< of the positions: where the next item begins
  int zeros;  ///< bytes of zeros to copy from
  int64_t blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

}  // namespace halo::cuda::conv::few_taps
