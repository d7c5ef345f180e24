// Warpgroup matrix multiply (sm_90a): ordering and shared-memory descriptors. The instructions are in wgmma_tf32.cuh.
// PTX ISA, "Asynchronous warpgroup level matrix instructions".
#pragma once

#include <cstdint>

#include "wgmma_tf32.cuh"

namespace halo::cuda::device {

/// Before the first wgmma that reads registers written by ordinary code, and between wgmmas of different shapes.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `Pending` committed groups are still running.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

/// After a wait: keeps the compiler from reading these accumulators before it.
template <int Count>
__device__ __forceinline__ void wgmma_pin(float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// Before a fence: keeps the compiler from computing these A fragments after it.
template <int Count>
__device__ __forceinline__ void wgmma_pin(uint32_t (&a)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

/// Shared memory written by ordinary stores and read next by wgmma or by the copy engine: each writing thread calls
/// this between its stores and the barrier.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// A 32-bit shared-memory address.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Word offset of element (row n, depth k < 8) in one k8 step of a K-major operand without swizzle: core matrices of
/// 8 rows x 4 words (128 contiguous bytes), the two along K adjacent, then the next 8 rows.
__host__ __device__ constexpr int core_matrix_word(int n, int k) {
  return ((n / 8) * 2 + k / 4) * 32 + (n % 8) * 4 + k % 4;
}

/// Descriptor of a K-major operand laid out by core_matrix_word (leading offset 128 bytes, stride offset 256 bytes).
__device__ __forceinline__ uint64_t core_matrix_descriptor(uint32_t address) {
  constexpr uint64_t kLeading = uint64_t{128 >> 4} << 16;
  constexpr uint64_t kStride = uint64_t{256 >> 4} << 32;
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | kLeading | kStride;
}

/// The descriptor of an operand `bytes` (a multiple of 16) further on: one addition, since no address reaches the
/// word's other half.
__device__ __forceinline__ uint64_t descriptor_after(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xFFFFFFFF00000000u) | (static_cast<uint32_t>(descriptor) + bytes / 16);
}

}  // namespace halo::cuda::device
