// Rows of planes that are read once: blocks of a cluster share a row, a part of which waits in shared memory.
#pragma once

#include <halo/core/host_device.h>
#include <halo/ops/norm.h>

#include <cstdint>
#include <optional>

#include "../device/packs.cuh"
#include "../runtime/traits.h"

namespace halo::cuda {

/// `parts` neighbouring blocks share a row; each has `share` elements of it, whole packs.
struct RowParts {
  static constexpr int kMost = 8;           ///< blocks of a cluster
  static constexpr int64_t kBytes = 44000;  ///< of a part; five fit beside each other, so that one computes while
                                            ///< others load
  int64_t length = 0;
  int parts = 1, share = 0;

  /// For rows of T of `operands` tensors; nothing unless blocks fill the GPU, planes are worth a warp, and shared
  /// memory has room for two parts.
  template <class T>
  static std::optional<RowParts> of(const RowNormProblem& p, int operands, int device) {
    constexpr int64_t kFewBlocks = 96, kShortPlane = 64, kLongRow = int64_t{1} << 28;
    const DeviceTraits& traits = device_traits(device);
    if (p.positions < kShortPlane || p.length() > kLongRow) return std::nullopt;
    RowParts rows{p.length()};
    const int64_t bytes = rows.length * static_cast<int64_t>(sizeof(T)) * operands;
    while (traits.is_hopper() && rows.parts < kMost && bytes > rows.parts * kBytes) rows.parts *= 2;
    rows.share = static_cast<int>((rows.length / rows.parts + kWide<T>) / kWide<T> * kWide<T>);
    const int64_t blocks = p.rows * rows.parts;
    const bool fits = bytes / rows.parts + 4096 <= static_cast<int64_t>(traits.block_memory / 2);
    if (!fits || blocks < kFewBlocks || blocks > INT32_MAX) return std::nullopt;
    return rows;
  }
  /// Elements of a part, at most; `pack`: of a pack.
  HALO_HOST_DEVICE int64_t room(int pack) const { return int64_t{share} + pack; }
  /// Where part `part` of the row at `row` begins; of part `parts`: the row's end. kSize: elements of a pack.
  template <int kSize>
  HALO_HOST_DEVICE int64_t begin(int64_t row, int part) const {
    if (part == 0) return row;
    return part == parts ? row + length : (row & ~int64_t{kSize - 1}) + int64_t{part} * share;
  }
};

}  // namespace halo::cuda
