// What the plans of small groups share: the limits they must fit, and how far taps reach.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "../../runtime/traits.h"
#include "../counts.h"
#include "small_groups.h"

namespace halo::cuda::conv::small_groups {

/// Bytes modulo 128 between channels, where lanes of one operand are 8 positions of 4 channels.
inline constexpr int kGatherBank = 32;
inline constexpr int64_t kLargestExtent = int64_t{1} << 30;

/// What the plans must fit and fill.
inline DeviceTraits device_limits() {
  constexpr std::size_t kStatic = 256;  // no more than this is declared in the kernels
  DeviceTraits limits = device_traits();
  limits.block_memory -= kStatic;
  return limits;
}

/// The farthest that any tap reads.
inline int reach(const AxisTaps& taps, int phases) {
  int most = 0;
  for (int phase = 0; phase < phases; ++phase) {
    for (int i = 0; i < taps.count[phase]; ++i) most = std::max(most, taps.offset[phase][i]);
  }
  return most;
}

/// Blocks a multiprocessor holds.
inline double resident_blocks(const DeviceTraits& limits, std::size_t shared_bytes, int warps) {
  return std::min(std::floor(double(limits.block_memory + 1024) / double(shared_bytes + 1024)),
                  std::floor(16.0 / warps));
}

}  // namespace halo::cuda::conv::small_groups
