// Runs of memory in shared memory, whatever their alignment.
#pragma once

#include <halo/core/host_device.h>

#include <cstddef>

#include "async_copy.cuh"
#include "packs.cuh"

namespace halo::cuda::device {

/// Shared memory that stage_run() needs for `count` elements of T.
template <class T>
HALO_HOST_DEVICE constexpr std::size_t staged_bytes(int64_t count) {
  return (static_cast<std::size_t>(count) * sizeof(T) + 2 * kGranule - 2) / kGranule * kGranule;
}

/// Has the `kThreads` threads of a block copy run[0 ... count - 1] to `shared` (aligned to 16 bytes) by whole granules
/// of memory, the first with its neighbours (an allocation begins at a granule), the last up to the end of the run,
/// with zeros after it. Returns where run[0] will be once the copies have been waited for; a thread copies granules
/// threadIdx.x, threadIdx.x + kThreads, ...
template <int kThreads, class T>
__device__ __forceinline__ const T* stage_run(unsigned char* shared, const T* run, int count) {
  const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(run) % kGranule);
  const auto* const from = reinterpret_cast<const unsigned char*>(run) - lead;
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = lead + count * static_cast<int>(sizeof(T));
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x) * kGranule; at < bytes; at += kThreads * kGranule) {
    copy_async_16(address + at, from + at, min(kGranule, bytes - at));
  }
  return reinterpret_cast<const T*>(shared + lead);
}

}  // namespace halo::cuda::device
