// Blocks of a cluster reach each other's shared memory. GPUs before Hopper have no clusters: every block is alone
// there, and nothing here does anything.
#pragma once

#include <cstdint>
#include <cstring>

namespace halo::cuda::device {

inline constexpr int kMostInCluster = 8;

/// This block is there: others may write to its shared memory once they have waited for it.
__device__ __forceinline__ void arrive_in_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/// Writes to what lies at the place of `slot`, in shared memory, in block `rank` of the cluster.
template <class Value>
__device__ __forceinline__ void store_in_block(int rank, Value* slot, const Value& value) {
#if __CUDA_ARCH__ >= 900
  constexpr int kWords = static_cast<int>(sizeof(Value) / 8);
  static_assert(sizeof(Value) == kWords * 8);
  uint64_t words[kWords];
  memcpy(words, &value, sizeof(Value));
  const auto here = static_cast<uint32_t>(__cvta_generic_to_shared(slot));
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(there + 8 * w), "l"(words[w]) : "memory");
  }
#endif
}

/// combine(a, b) over the `blocks` blocks of a cluster, in order, of which this is `rank`; every thread passes its
/// block's value and gets the result. All have called arrive_in_cluster() before; `slots`: shared memory for
/// kMostInCluster values.
template <class Value, class Combine>
__device__ __forceinline__ Value combine_cluster(int blocks, int rank, const Value& value, Value* slots,
                                                 const Combine& combine) {
  if (blocks == 1) return value;
  wait_for_cluster();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < blocks) store_in_block(thread, slots + rank, value);
  arrive_in_cluster();
  wait_for_cluster();
  Value total = slots[0];
  for (int block = 1; block < blocks; ++block) total = combine(total, slots[block]);
  return total;
}

}  // namespace halo::cuda::device
