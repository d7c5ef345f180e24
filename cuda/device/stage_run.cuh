// Runs of memory in shared memory, whatever their alignment.
#pragma once

#include <halo/core/host_device.h>

#include <cstddef>
#include <type_traits>

#include "async_copy.cuh"
#include "mbarrier.cuh"
#include "packs.cuh"
#include "widen.cuh"

namespace halo::cuda::device {

inline constexpr int kLine = 128;  ///< bytes: what the second-level cache is read and written by

/// Shared memory for `count` elements of T that lie among the granules there as in memory.
template <class T>
HALO_HOST_DEVICE constexpr std::size_t staged_bytes(int64_t count) {
  return (static_cast<std::size_t>(count) * sizeof(T) + 2 * kGranule - 2) / kGranule * kGranule;
}
/// The same of RunStage::copy(), among the lines.
template <class T>
HALO_HOST_DEVICE constexpr std::size_t copied_bytes(int64_t count) {
  return staged_bytes<T>(count) + (kLine - kGranule);
}

/// Threads of the block: kThreads, or as many as were launched where that is 0.
template <int kThreads>
__device__ __forceinline__ int block_threads() {
  return kThreads > 0 ? kThreads : static_cast<int>(blockDim.x);
}

/// Copies of runs to shared memory, by the copy engine where there is one, else by the threads of the block
/// (block_threads<kThreads>()), all of which call everything here.
template <int kThreads>
class RunStage {
 public:
  /// `barrier`: 8 bytes of shared memory; `runs`: as many as will be copied.
  __device__ __forceinline__ RunStage(uint64_t& barrier, int runs)
      : barrier_(static_cast<uint32_t>(__cvta_generic_to_shared(&barrier))) {
    if constexpr (kBulk) {
      if (threadIdx.x == 0) {
        barrier_init(barrier_, runs);
        barrier_init_fence();
      }
      __syncthreads();  // between the initialisation and its use, as compute-sanitizer wants it
    }
  }
  /// run[0 ... count - 1] to `shared` (aligned to a line; copied_bytes() of it), where it lies among the lines as in
  /// memory: the copy engine would read most lines twice. By granules of memory, the first and the last one with their
  /// neighbours: an allocation begins at a granule, and `behind` elements of it follow the run. Where these are too few
  /// the last one comes element by element, with zeros after it. Returns where run[0] will be after wait().
  template <class T>
  __device__ __forceinline__ const T* copy(unsigned char* shared, const T* run, int count, int64_t behind) {
    constexpr int kElements = kGranule / static_cast<int>(sizeof(T));
    const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(run) % kGranule) / static_cast<int>(sizeof(T));
    const T* const from = run - lead;
    T* const to = reinterpret_cast<T*>(shared + reinterpret_cast<uintptr_t>(from) % kLine);
    const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    const int thread = static_cast<int>(threadIdx.x), last = (kElements - (lead + count) % kElements) % kElements;
    const int end = lead + count, granules = end / kElements + (last > 0 && last <= behind ? 1 : 0);
    if constexpr (kBulk) {
      if (thread == 0) {
        const auto bytes = static_cast<uint32_t>(granules * kGranule);
        barrier_expect(barrier_, bytes);
        if (bytes > 0) copy_bulk(address, from, bytes, barrier_);
      }
    } else {
#pragma unroll 4
      for (int at = thread * kElements; at < granules * kElements; at += block_threads<kThreads>() * kElements) {
        copy_async_16(address + at * static_cast<int>(sizeof(T)), from + at, kGranule);
      }
    }
    if (last > behind) {
      const int at = granules * kElements + thread;
      if (thread < kElements) to[at] = at >= lead && at < end ? from[at] : T{};
    }
    return to + lead;
  }
  /// Until all runs are there; the block meets.
  __device__ __forceinline__ void wait() {
    if constexpr (!kBulk) copy_async_wait_all();
    __syncthreads();
    if constexpr (kBulk) barrier_wait(barrier_, 0);
  }

 private:
#if __CUDA_ARCH__ >= 900
  static constexpr bool kBulk = true;
#else
  static constexpr bool kBulk = false;
#endif
  uint32_t barrier_;
};

/// Where the values that belong at run[0 ...] have to be in `shared` for store_run(); room for staged_bytes<T>() and,
/// of wider values, as many times more.
template <class Value, class T>
__device__ __forceinline__ Value* staged_place(unsigned char* shared, const T* run) {
  return reinterpret_cast<Value*>(shared) + reinterpret_cast<uintptr_t>(run) % kGranule / sizeof(T);
}

/// Has the threads of a block (block_threads<kThreads>()) write run[0 ... count - 1], rounded to T, from there: whole
/// granules, so that memory need not put parts of its sectors together, and elements at the edges.
template <int kThreads, class Value, class T>
__device__ __forceinline__ void store_run(const Value* staged, T* run, int count) {
  constexpr int kSize = kWide<T>;
  const auto rounded = [](const auto& values) {
    if constexpr (std::is_same_v<Value, T>) {
      return values;
    } else {
      return narrow<T>(values);
    }
  };
  const int thread = static_cast<int>(threadIdx.x), threads = block_threads<kThreads>();
  const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(run) % kGranule / sizeof(T));
  const int head = lead == 0 ? 0 : min(kSize - lead, count), packs = (count - head) / kSize;
  // Whole lines of memory to a warp at a time.
  const int first = thread - static_cast<int>(reinterpret_cast<uintptr_t>(run + head) % kLine / kGranule);
  for (int i = first < 0 ? first + threads : first; i < packs; i += threads) {
    reinterpret_cast<Pack<T, kSize>*>(run + head)[i] =
        rounded(reinterpret_cast<const Pack<Value, kSize>*>(staged + head)[i]);
  }
  const int tail = head + packs * kSize;
  const auto single = [&](int i) { run[i] = rounded(Pack<Value, 1>{staged[i]}).at[0]; };
  if (thread < head) single(thread);
  if (thread < count - tail) single(tail + thread);
}

}  // namespace halo::cuda::device
