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

/// Has the `kThreads` threads of a block copy run[0 ... count - 1] to `shared` (aligned to 16 bytes) by granules of
/// memory, the first with its neighbours (an allocation begins at a granule), the last one element by element unless it
/// is whole (an allocation may end within it), with zeros after it. Returns where run[0] will be once the copies have
/// been waited for and the block has met; a thread copies granules threadIdx.x, threadIdx.x + kThreads, ...
template <int kThreads, class T>
__device__ __forceinline__ const T* stage_run(unsigned char* shared, const T* run, int count) {
  constexpr int kElements = kGranule / static_cast<int>(sizeof(T));
  const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(run) % kGranule) / static_cast<int>(sizeof(T));
  const T* const from = run - lead;
  T* const to = reinterpret_cast<T*>(shared);
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int end = lead + count;
#pragma unroll 4
  for (int at = static_cast<int>(threadIdx.x) * kElements; at + kElements <= end; at += kThreads * kElements) {
    copy_async_16(address + at * static_cast<int>(sizeof(T)), from + at, kGranule);
  }
  if (const int at = end / kElements * kElements + static_cast<int>(threadIdx.x);
      threadIdx.x < kElements && end % kElements != 0) {
    to[at] = at >= lead && at < end ? from[at] : T{};
  }
  return to + lead;
}

/// Where run[0 ...] has to be in `shared` (staged_bytes() of it) for store_run().
template <class T>
__device__ __forceinline__ T* staged_place(unsigned char* shared, const T* run) {
  return reinterpret_cast<T*>(shared + reinterpret_cast<uintptr_t>(run) % kGranule);
}

/// Has the `kThreads` threads of a block write run[0 ... count - 1] from there: whole granules, so that memory need not
/// put parts of its sectors together, and elements at the edges.
template <int kThreads, class T>
__device__ __forceinline__ void store_run(const T* staged, T* run, int count) {
  using Packed = Pack<T, kWide<T>>;
  const int thread = static_cast<int>(threadIdx.x);
  const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(run) % kGranule / sizeof(T));
  const int head = lead == 0 ? 0 : min(kWide<T> - lead, count), packs = (count - head) / kWide<T>;
  for (int i = thread; i < packs; i += kThreads) {
    reinterpret_cast<Packed*>(run + head)[i] = reinterpret_cast<const Packed*>(staged + head)[i];
  }
  const int tail = head + packs * kWide<T>;
  if (thread < head) run[thread] = staged[thread];
  if (thread < count - tail) run[tail + thread] = staged[tail + thread];
}

}  // namespace halo::cuda::device
