// Stores by the copy engine.
#pragma once

#include <cstdint>

namespace halo::cuda::device {

/// A box of a three-dimensional tensor map out of shared memory (aligned to 128 bytes); what lies outside the map's
/// extents is not written. Then store_commit() and, by the same thread, a wait.
__device__ __forceinline__ void store_box(const void* tensor_map, int x, int row, int matrix, uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(tensor_map),
               "r"(x), "r"(row), "r"(matrix), "r"(shared)
               : "memory");
}

/// `bytes` (a multiple of 16, both addresses aligned to 16), likewise.
__device__ __forceinline__ void store_bulk(void* global, uint32_t shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Until the shared memory of all committed stores may be written again.
__device__ __forceinline__ void store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/// Until all committed stores are complete.
__device__ __forceinline__ void store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace halo::cuda::device
