// Transposed convolutions (input gradients with a stride) whose results have few taps, and many of them none: what the
// host decides and few_taps_kernel.cuh reads. Phases and offsets are those of small_groups.h.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <cstddef>
#include <cstdint>

#include "../device/fast_divide.h"
#include "small_groups.h"

namespace halo::cuda::conv::few_taps {

inline constexpr int kTaps = 4;           ///< of the width, over all its phases; of depth and height one a phase
inline constexpr int kWindowTaps = 3;     ///< neighbours of one phase
inline constexpr int kSteps = 4;          ///< of eight source channels
inline constexpr int kWarpChannels = 16;  ///< result channels of a warp
inline constexpr int kMostWarps = 4;
inline constexpr int kTiles = 4;  ///< of eight positions that a warp works on at once
inline constexpr int kChunk = kTiles * 8;
inline constexpr int kBlocks = 2;           ///< a multiprocessor
inline constexpr int kLine = 32;            ///< bytes; the copy engine writes whole ones, or it is a third slower
inline constexpr int kZeroBytes = 4 << 10;  ///< a copy of zeros

struct Plan {
  small_groups::GroupProblem problem;
  int taps, tap[kTaps], phase[kTaps], offset[kTaps];  ///< of the width, phase by phase
  bool last[kTaps];                                   ///< of its phase
  int positions;                                      ///< q of a row in an item
  int stage_pitch, source_pitch;                      ///< elements; of result and source channels
  bool windows;                                       ///< the taps are neighbours of one phase, by offset
  int lead;           ///< positions by which the first item of a row begins before it, so that its source is aligned
  bool granules;      ///< the source is copied by 16 bytes, else by elements
  FastDivide pieces;  ///< of a source row in an item
  int warps;
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
