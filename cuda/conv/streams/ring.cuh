// The ring of units in shared memory. One warp fills it, a lane a channel; users read the units in order and release
// each.
#pragma once

#include "../granule_rows.cuh"
#include "../stage_ring.cuh"
#include "streams.h"

namespace halo::cuda::conv::streams {

static_assert(kMostSlots <= Ring::kMost);

/// A range of heights and depths of an image.
struct Item {
  int64_t image;
  int h, d;    ///< first result
  int depths;  ///< results
  int units;
  int row, rows;  ///< of x, of a run: those that exist

  __device__ __forceinline__ Item(const Plan& p, int index) {
    uint32_t at_h, at_d;
    image = p.by_depth.divide(p.by_height.divide(static_cast<uint32_t>(index), at_h), at_d);
    h = static_cast<int>(at_h) * p.heights;
    d = static_cast<int>(at_d) * p.depths;
    depths = min(p.depths, p.depth.result - d);
    units = (depths - 1) * p.phases + p.depth.kernel;
    const int first = h * p.height.step + p.height.origin;
    const int reach =
        (min(p.heights, p.height.result - h) - 1) * p.height.step + (p.height.kernel - 1) * p.height.apart;
    row = max(0, first);
    rows = max(0, min(p.height.source, first + reach + 1) - row);
  }
  /// Depth of x.
  __device__ __forceinline__ int at(const Plan& p, int unit) const {
    return d * p.depth.step + p.depth.origin + unit * p.apart;
  }
  /// Whether users wait for the unit.
  __device__ __forceinline__ bool exists(const Plan& p, int unit) const {
    return static_cast<unsigned>(at(p, unit)) < static_cast<unsigned>(p.depth.source) && rows > 0;
  }
};

/// Copies a run of each lane, `bytes` from `from` (lanes with none: 0), into the ring's slot, `to` rounded down to a
/// granule. By a whole warp, which waits until the slot is free.
template <class T>
__device__ __forceinline__ void start_runs(const Ring& ring, const T* from, uint32_t bytes, uint32_t to, const T* end,
                                           int lane) {
  ring.wait_released();
  conv::start_runs(ring.copied(), from, bytes, to, from, end, lane);
}

/// By the warp that fills the ring: all units of the block's items.
template <class T>
__device__ __forceinline__ void stream_units(const Plan& p, Ring ring, uint32_t shared, const T* x, int group,
                                             int first, int lane) {
  const int64_t plane = int64_t{p.height.source} * p.width.source;
  const uint32_t to = shared + static_cast<uint32_t>(lane % 4 * p.map.pitch + lane / 4 * p.map.quad_pitch);
  for (int index = first; index < p.items; index += p.sharers) {
    const Item item(p, index);
    const int64_t channel = (item.image * p.groups + group) * p.channels + min(lane, p.channels - 1);
    const T* const run = x + channel * p.depth.source * plane + int64_t{item.row} * p.width.source;
    const uint32_t bytes =
        lane < p.channels ? static_cast<uint32_t>(item.rows * p.width.source) * uint32_t{sizeof(T)} : 0;
    for (int unit = 0; unit < item.units; ++unit) {
      if (!item.exists(p, unit)) continue;
      start_runs(ring, run + item.at(p, unit) * plane, bytes, to + static_cast<uint32_t>(ring.slot() * p.slot_bytes),
                 x + p.x_elements, lane);
      ring.advance();
    }
  }
}

/// Bytes by which the first element of a run lies behind the start of its place in the slot: `run` is the number of
/// that element in x.
template <class T>
__device__ __forceinline__ int lead_of(const T* x, uint32_t run) {
  return static_cast<int>((static_cast<uint32_t>(reinterpret_cast<uintptr_t>(x)) + run * uint32_t{sizeof(T)}) %
                          device::kGranule);
}

}  // namespace halo::cuda::conv::streams
