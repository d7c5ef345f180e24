// Rows of the dense engine's tile: where they read in the halo and where their outputs go.
#pragma once

#include "block.cuh"

namespace halo::cuda::conv {

/// Row of accumulator half `h` of m64 tile `m` of a thread: a warp's rows are neighbours, so that it stores long runs.
/// With windows a thread's rows are neighbours too.
template <class Traits>
__device__ __forceinline__ int dense_row(int thread, int m, int h) {
  if constexpr (Traits::kWindowTaps > 0) return thread / 32 * 32 + thread % 32 / 4 * 4 + m * 2 + h;
  return thread / 32 * (16 * Traits::kRowTiles) + m * 16 + h * 8 + thread % 32 / 4;
}

/// Where a row of the tile lies; the same for every item of tiles that are not flat.
struct DenseRow {
  int d, h, w;
  bool inside;  ///< the tile may have fewer rows than the kernel computes

  __host__ __device__ DenseRow(const DenseParams& p, int row, uint32_t before) {
    uint32_t within, across;
    d = static_cast<int>(p.by_slice.divide(static_cast<uint32_t>(row), within));
    h = static_cast<int>(p.by_line.divide(within + before, across));
    w = static_cast<int>(across);
    inside = d < p.tile[0];
  }
  /// Bytes from the start of a halo stage to what the row reads at offset 0.
  __host__ __device__ uint32_t halo_byte(const DenseParams& p, int element = sizeof(float)) const {
    if (!inside) return static_cast<uint32_t>(w % 8 * p.in_step[2] * element);  // any run that exists will do
    const int word = (d * p.in_step[0] * p.halo_height + h * p.in_step[1]) * p.halo_pitch + w * p.in_step[2];
    return static_cast<uint32_t>(word * element);
  }
};

/// Where a row's outputs go in one item, and which of its grouped positions exist.
struct DenseRowTarget {
  static constexpr uint32_t kGuards = 512u | 512u << 10 | 512u << 20;
  int64_t address;  ///< of the row's first output in the item's first channel; kDenseNowhere if no output exists
  uint32_t limit;   ///< three fields of 511 + (positions that exist, at most 512)
  uint32_t skip;    ///< three fields: positions before the first that exists

  DenseRowTarget() = default;
  /// `element`: bytes of an output.
  __host__ __device__ DenseRowTarget(const DenseParams& p, const DenseItem& item, const DenseRow& row,
                                     int64_t element = sizeof(float)) {
    const DensePhase& phase = p.phase[item.phase];
    const int at[3] = {(item.q0[0] + row.d) * p.out_step[0] + phase.j0[0],
                       (item.q0[1] + row.h) * p.out_step[1] + phase.j0[1],
                       (item.q0[2] + row.w) * p.out_step[2] + phase.j0[2]};
    bool any = row.inside && item.exists;
    limit = skip = 0;
    for (int axis = 0; axis < 3; ++axis) {
      const int exist = min(max(p.target_extent[axis] - at[axis], 0), 512);
      any = any && exist > 0;
      limit |= static_cast<uint32_t>(511 + exist) << (20 - 10 * axis);
      skip |= static_cast<uint32_t>(min(max(-at[axis], 0), 512)) << (20 - 10 * axis);
    }
    const int64_t channel = (int64_t{item.n} * p.groups.divisor + item.group) * p.target_channels;
    const int64_t position = (int64_t{at[0]} * p.target_extent[1] + at[1]) * p.target_extent[2] + at[2];
    address = any ? reinterpret_cast<int64_t>(p.target) +
                        (item.split * p.target_numel + channel * p.target_plane + position) * element
                  : kDenseNowhere;
  }
  /// Whether the position `j` (DenseColumn) further on exists: no field falls below its guard bit.
  __host__ __device__ bool has(uint32_t j) const { return ((limit - j) & ((j | kGuards) - skip) & kGuards) == kGuards; }
  /// Some positions of the group exist and some do not.
  __host__ __device__ bool partial(uint32_t last_j) const { return address >= 0 && !(has(0) && has(last_j)); }
};
static_assert(sizeof(DenseRowTarget) == 16 && sizeof(DenseColumn) == 16);

}  // namespace halo::cuda::conv
