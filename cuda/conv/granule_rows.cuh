// Runs of elements of any alignment into shared memory, by the copy engine and as they lie in memory.
#pragma once

#include "../device/async_copy.cuh"
#include "../device/mbarrier.cuh"

namespace halo::cuda::conv {

/// Bytes by which an element lies behind a whole granule.
template <class T>
__device__ __forceinline__ uint32_t lead_of(const T* element) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(element) % device::kGranule);
}

/// Copies a run of each lane, `bytes` from `from` (lanes with none: 0), whole granules, the first one to `to`; of the
/// tensor from `begin` to `end`, whatever the run has outside of it is left out. Arrives on `barrier`. By a whole warp.
template <class T>
__device__ __forceinline__ void start_runs(uint32_t barrier, const T* from, uint32_t bytes, uint32_t to, const T* begin,
                                           const T* end, int lane) {
  const uint32_t lead = lead_of(from);
  const char* start = reinterpret_cast<const char*>(from) - lead;
  uint32_t whole = bytes == 0 ? 0 : (bytes + lead + device::kGranule - 1) / device::kGranule * device::kGranule;
  const int64_t before = reinterpret_cast<const char*>(begin) - lead_of(begin) - start;
  if (before > 0) {
    const auto skipped = static_cast<uint32_t>(min(before, int64_t{whole}));
    start += skipped;
    to += skipped;
    whole -= skipped;
  }
  const int64_t behind = start + whole - reinterpret_cast<const char*>(end);
  if (whole != 0 && behind > 0) {
    // The last granule is not whole inside the tensor.
    const auto inside = static_cast<uint32_t>(max(int64_t{whole} - behind, int64_t{0}));
    whole = inside / device::kGranule * device::kGranule;
    for (uint32_t at = whole; at < inside; at += uint32_t{sizeof(T)}) {
      T* const element = static_cast<T*>(__cvta_shared_to_generic(to + at));
      *element = *reinterpret_cast<const T*>(start + at);
    }
  }
  const uint32_t all = __reduce_add_sync(0xffffffffu, whole);
  __syncwarp();  // what was stored by elements comes before the arrival
  if (lane == 0) device::barrier_expect(barrier, all);
  __syncwarp();
  if (whole != 0) device::copy_bulk(to, start, whole, barrier);
  __syncwarp();
}

}  // namespace halo::cuda::conv
