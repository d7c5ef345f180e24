// Strided convolutions of the width whose taps are a stride apart, so that they read one of its phases alone: what the
// host decides and one_phase_kernel.cuh reads.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <cstddef>
#include <cstdint>

#include "../device/fast_divide.h"
#include "small_groups.h"

namespace halo::cuda::conv::one_phase {

inline constexpr int kTaps = 3;
inline constexpr int kPositions = 32;   ///< of a warp, four neighbours a lane
inline constexpr int kColumnTiles = 4;  ///< of eight result channels
inline constexpr int kSteps = 8;        ///< of eight source channels
inline constexpr int kGranules = 12;    ///< of 16 bytes, of a source row in an item
inline constexpr int kMostWarps = 16;
inline constexpr int kStageBytes = kSteps * 8 * kGranules * 16;  ///< of a warp

struct Plan {
  small_groups::GroupProblem problem;
  int tap[kTaps];    ///< in the order of the source, or -1
  int granules;      ///< of a source row that an item reads
  int steps;         ///< of the source channels
  bool packs;        ///< four results are one access
  FastDivide tiles;  ///< of a row
  FastDivide rows;   ///< of an image
  int warps;
  int items;
  int64_t blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

}  // namespace halo::cuda::conv::one_phase
