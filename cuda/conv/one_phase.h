// Convolutions of stride 2 along the width whose taps are a stride apart, so that they read every second position
// alone: what the host decides and one_phase_kernel.cuh reads.
#pragma once

#include <halo/core/host_device.h>
#include <halo/cuda/conv/algorithm.h>

#include <cstddef>
#include <cstdint>

#include "../device/fast_divide.h"
#include "small_groups.h"

namespace halo::cuda::conv::one_phase {

inline constexpr int kStep = 2;  ///< of the width: elements from one position of the phase to the next
inline constexpr int kTaps = 3;
inline constexpr int kLanePositions = 4;
inline constexpr int kWindow = kLanePositions + kTaps - 1;  ///< positions of the phase that a lane reads
inline constexpr int kUsers = 8;                            ///< warps that multiply
inline constexpr int kThreads = (kUsers + 4) * 32;          ///< one more warp brings, of a warpgroup
inline constexpr int kWarpPositions = 8 * kLanePositions;
inline constexpr int kPositions = kUsers * kWarpPositions;           ///< of an item
inline constexpr int kReach = (kPositions + kTaps - 2) * kStep + 1;  ///< elements of a source row that it reads
inline constexpr int kColumns = 32;                                  ///< result channels
inline constexpr int kTileBytes = kColumns * 32;                     ///< of weights that one product reads
inline constexpr int kSteps = 2;                                     ///< products of a unit
inline constexpr int kFewestSlots = 3;

/// Source channels of a unit.
HALO_HOST_DEVICE constexpr int channels_of(int element_size) { return kSteps * 32 / element_size; }
/// Bytes between the channels of a unit, wherever its rows begin: an odd number of 16, against bank conflicts.
HALO_HOST_DEVICE constexpr int pitch_of(int element_size) { return (kReach * element_size + 15 + 15) / 32 * 32 + 16; }
HALO_HOST_DEVICE constexpr int slot_bytes_of(int element_size) {
  return channels_of(element_size) * pitch_of(element_size);
}

struct Plan {
  small_groups::GroupProblem problem;
  int tap[kTaps];  ///< in the order of the source, or -1
  int units;       ///< of the source channels
  int weight_bytes;
  int slots;
  bool packs;        ///< four results are one access
  FastDivide tiles;  ///< of a row
  FastDivide rows;   ///< of an image
  int items;
  int64_t blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

}  // namespace halo::cuda::conv::one_phase
