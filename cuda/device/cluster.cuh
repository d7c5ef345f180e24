// Blocks of a cluster reach each other's shared memory. GPUs before Hopper have no clusters: every block is alone
// there, and nothing here does anything.
#pragma once

#include <cstdint>

namespace halo::cuda::device {

inline constexpr int kMostInCluster = 8;

/// This block is there: others may write to its shared memory once they have waited for it.
__device__ __forceinline__ void arrive_in_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
/// Waits for all threads of the cluster, and for what they wrote to each other's shared memory.
__device__ __forceinline__ void meet_in_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/// Writes to what lies at the place of `slot`, in shared memory, in block `rank` of the cluster.
__device__ __forceinline__ void store_in_block(int rank, double* slot, double value) {
#if __CUDA_ARCH__ >= 900
  const auto here = static_cast<uint32_t>(__cvta_generic_to_shared(slot));
  asm volatile(
      "{\n .reg .b32 there;\n mapa.shared::cluster.u32 there, %0, %1;\n st.shared::cluster.f64 [there], %2;\n}\n" ::"r"(
          here),
      "r"(rank), "d"(value)
      : "memory");
#endif
}

/// What sum_in_cluster() needs of shared memory.
template <int kThreads, int kCount>
struct ClusterSums {
  double of_warps[kThreads / 32][kCount], of_blocks[kMostInCluster][kCount];
};

/// Sums of `own` over all threads of the `blocks` blocks of a cluster, of which this is `rank`, in a fixed order, for
/// thread 0 of each; the others get parts of them. All have called arrive_in_cluster() before if there are several;
/// then `send`() may write to other blocks, which have it afterwards.
template <int kThreads, int kCount, class Send>
__device__ __forceinline__ void sum_in_cluster(int blocks, int rank, double (&own)[kCount],
                                               ClusterSums<kThreads, kCount>& shared, Send send) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) {
#pragma unroll
    for (double& value : own) value += __shfl_xor_sync(~0u, value, mask);
  }
  if (thread % 32 == 0) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) shared.of_warps[thread / 32][k] = own[k];
  }
  __syncthreads();
  if (thread == 0) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      for (int warp = 1; warp < kThreads / 32; ++warp) own[k] += shared.of_warps[warp][k];
    }
  }
  if (blocks == 1) return;
  wait_for_cluster();
  send();
  if (thread == 0) {
    for (int block = 0; block < blocks; ++block) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) store_in_block(block, &shared.of_blocks[rank][k], own[k]);
    }
  }
  meet_in_cluster();
  if (thread > 0) return;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    own[k] = shared.of_blocks[0][k];
    for (int block = 1; block < blocks; ++block) own[k] += shared.of_blocks[block][k];
  }
}

}  // namespace halo::cuda::device
