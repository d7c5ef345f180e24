// Asynchronous copies from global to shared memory: per-thread (cp.async) and bulk (one thread, the copy engine).
#pragma once

#include <cstdint>

namespace halo::cuda::device {

inline constexpr int kGranule = 16;  ///< bytes of the widest copy of a thread

/// `Bytes` (4, 8 or 16, both addresses aligned to as much); reads only `source_bytes` of them and writes zeros for the
/// rest, so that with 0 the global address is not touched.
template <int Bytes>
__device__ __forceinline__ void copy_async(uint32_t shared, const void* global, int source_bytes) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16);
  if constexpr (Bytes == 16) {  // through L2 alone: L1 would only be thrashed
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(source_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared), "l"(global), "r"(source_bytes),
                 "n"(Bytes)
                 : "memory");
  }
}

/// copy_async of 4 bytes, or zeros where `valid` is false; of 16 bytes.
__device__ __forceinline__ void copy_async_4(uint32_t shared, const void* global, bool valid) {
  copy_async<4>(shared, global, valid ? 4 : 0);
}
__device__ __forceinline__ void copy_async_16(uint32_t shared, const void* global, int source_bytes) {
  copy_async<16>(shared, global, source_bytes);
}

__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `Pending` of this thread's committed groups are still running.
template <int Pending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// Waits for all of this thread's copies, committed or not.
__device__ __forceinline__ void copy_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// This thread's earlier cp.async copies arrive on `barrier` when they are complete. The arrival is one of those that
/// the barrier was initialised to expect.
__device__ __forceinline__ void copy_async_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/// `bytes` (a multiple of 16, both addresses aligned to 16) by the copy engine; completes on `barrier`, which must have
/// been told to expect them (barrier_expect).
__device__ __forceinline__ void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

/// The same into the first two blocks of the cluster, at the same place in each; completes on the barrier of each.
__device__ __forceinline__ void copy_bulk_to_pair(uint32_t shared, const void* global, uint32_t bytes,
                                                  uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
      "%4;" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "h"(static_cast<uint16_t>(3))
      : "memory");
}

/// `bytes` (a multiple of 16, both addresses aligned to 16) from shared to global memory by the copy engine. What
/// threads wrote into shared memory has been fenced (fence_async_proxy) before.
__device__ __forceinline__ void store_bulk(void* global, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}
/// Ends a group of this thread's store_bulk, and waits until all but the last `Pending` groups have read shared memory.
template <int Pending>
__device__ __forceinline__ void store_bulk_wait() {
  asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

/// A box of a two-dimensional tensor map (in constant or parameter memory) whose corner is element (x, row); zeros
/// outside the map's extents. `shared` is aligned to 128 bytes. Completes on `barrier` as copy_bulk does.
__device__ __forceinline__ void copy_box(uint32_t shared, const void* tensor_map, int x, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared),
      "l"(tensor_map), "r"(x), "r"(row), "r"(barrier)
      : "memory");
}

/// The same of a three-dimensional tensor map; the corner is element (x, row) of `matrix`.
__device__ __forceinline__ void copy_box(uint32_t shared, const void* tensor_map, int x, int row, int matrix,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(shared),
      "l"(tensor_map), "r"(x), "r"(row), "r"(matrix), "r"(barrier)
      : "memory");
}

/// The same of a five-dimensional map.
__device__ __forceinline__ void copy_box(uint32_t shared, const void* tensor_map, const int (&corner)[5],
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], "
      "[%7];" ::"r"(shared),
      "l"(tensor_map), "r"(corner[0]), "r"(corner[1]), "r"(corner[2]), "r"(corner[3]), "r"(corner[4]), "r"(barrier)
      : "memory");
}

}  // namespace halo::cuda::device
