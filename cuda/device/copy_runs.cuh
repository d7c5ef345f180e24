// Runs of memory of any alignment into shared memory by the copy engine, a lane a run.
#pragma once

#include "async_copy.cuh"
#include "mbarrier.cuh"

namespace halo::cuda::device {

/// Bytes by which `address` lies behind the start of its granule.
__device__ __forceinline__ uint32_t lead_in_granule(const void* address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) % kGranule);
}

/// By a whole warp: copies a run of each lane, `bytes` from `from` (lanes with none: 0), to `to` (a multiple of a
/// granule), the first granule whole, so that the run begins lead_in_granule(from) bytes further. Nothing at `end` or
/// behind it is read: an allocation may end there. Arrives once on `barrier`, which completes with the copies.
template <class T>
__device__ __forceinline__ void copy_runs(uint32_t barrier, const T* from, uint32_t bytes, uint32_t to, const T* end,
                                          int lane) {
  const uint32_t lead = lead_in_granule(from);
  const char* const start = reinterpret_cast<const char*>(from) - lead;
  uint32_t whole = bytes == 0 ? 0 : (bytes + lead + kGranule - 1) / kGranule * kGranule;
  if (whole != 0 && start + whole > reinterpret_cast<const char*>(end)) {
    // The last granule is not whole inside the tensor.
    whole -= kGranule;
    for (uint32_t at = max(whole, lead); at < bytes + lead; at += uint32_t{sizeof(T)}) {
      T* const element = static_cast<T*>(__cvta_shared_to_generic(to + at));
      *element = *reinterpret_cast<const T*>(start + at);
    }
  }
  const uint32_t all = __reduce_add_sync(0xffffffffu, whole);
  __syncwarp();
  if (lane == 0) barrier_expect(barrier, all);
  __syncwarp();
  if (whole != 0) copy_bulk(to, start, whole, barrier);
  __syncwarp();
}

}  // namespace halo::cuda::device
