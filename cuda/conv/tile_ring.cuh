// A ring of tiles in shared memory. Loader warps fill it, a fixer writes the zeros around the tensor, users compute: no
// warp that computes gives orders to the copy engine, which takes those of a warp one after the other, at 60 cycles
// each.
//
//   loader:  acquire; load_box of one or more boxes; started; advance
//   fixer:   wait_copied; finish_box of each; fixed; advance
//   user:    wait; ...; release; advance
#pragma once

#include <cstdint>

#include "row_box.cuh"

namespace halo::cuda::conv {

/// As start_box, by warp `warp` of `warps`, rows in turn; returns the bytes that the lane has asked for. The engine
/// takes orders with uniform operands only: rows are worked out a lane each, then handed round.
template <class T>
__device__ __forceinline__ uint32_t load_box(unsigned char* shared, const RowBox& box, const RowSource& source,
                                             const BoxPlace<T>& place, uint32_t barrier, int warp, int warps) {
  const BoxColumns columns(box, source, place);
  if (columns.first == columns.last) return 0;
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(shared) + box_shift(place));
  const int rows = place.planes * static_cast<int>(box.outer.divisor * box.inner.divisor);
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint32_t all = 0;
  for (int first = warp; first < rows; first += warps * 32) {
    const int index = first + lane * warps;
    RowCopy copy(box, source, place, columns, at, min(index, rows - 1));
    if (index >= rows) copy.bytes = 0;
    all += copy.bytes;
#if __CUDA_ARCH__ >= 900
    constexpr int kBatch = 4;  // divides 32
    const int count = min(32, (rows - first + warps - 1) / warps);
    const uint32_t same_barrier = __shfl_sync(0xffffffffu, barrier, 0);
    for (int i = 0; i < count; i += kBatch) {
      uintptr_t from[kBatch];
      uint32_t to[kBatch], bytes[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        from[k] = __shfl_sync(0xffffffffu, reinterpret_cast<uintptr_t>(copy.from), i + k);
        to[k] = __shfl_sync(0xffffffffu, copy.to, i + k);
        bytes[k] = __shfl_sync(0xffffffffu, copy.bytes, i + k);
      }
      if (lane != 0) continue;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (bytes[k] != 0) device::copy_bulk(to[k], reinterpret_cast<const void*>(from[k]), bytes[k], same_barrier);
      }
    }
#else
    for (uint32_t b = 0; b < copy.bytes; b += device::kGranule) {
      device::copy_async_16(copy.to + b, copy.from + b, device::kGranule);
    }
#endif
  }
  return all;
}

class TileRing {
 public:
  struct Barriers {
    uint64_t copied[kMostRingTiles], fixed[kMostRingTiles], free[kMostRingTiles];
  };

  __device__ TileRing(Barriers& barriers, int tiles)
      : barriers_(static_cast<uint32_t>(__cvta_generic_to_shared(&barriers))), tiles_(tiles) {}

  /// By one thread of the block, before the block synchronises.
  __device__ void init(int user_warps) const {
    for (int i = 0; i < tiles_; ++i) {
#if __CUDA_ARCH__ >= 900
      device::barrier_init(copied(i), kRingLoaders);
#else
      device::barrier_init(copied(i), kRingLoaders * 32);
#endif
      device::barrier_init(fixed(i), 32);
      device::barrier_init(free(i), user_warps);
    }
#if __CUDA_ARCH__ >= 900
    device::barrier_init_fence();
#endif
  }

  __device__ int tile() const { return tile_; }
  __device__ void advance() {
    if (++tile_ == tiles_) {
      tile_ = 0;
      parity_ ^= 1;
    }
  }

  __device__ void acquire() const { device::barrier_wait(free(tile_), parity_ ^ 1); }
  __device__ uint32_t copied() const { return copied(tile_); }
  /// `bytes`: what load_box returned, in sum.
  __device__ void started(uint32_t bytes) const {
#if __CUDA_ARCH__ >= 900
    const uint32_t all = __reduce_add_sync(0xffffffffu, bytes);
    __syncwarp();
    if (threadIdx.x % 32 == 0) device::barrier_expect(copied(tile_), all);
#else
    device::copy_async_arrive(copied(tile_));
#endif
  }
  __device__ void wait_copied() const { device::barrier_wait(copied(tile_), parity_); }
  __device__ void fixed() const { device::barrier_arrive(fixed(tile_)); }

  __device__ void wait() const {
    device::barrier_wait(copied(tile_), parity_);
    device::barrier_wait(fixed(tile_), parity_);
  }
  __device__ void release() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) device::barrier_arrive(free(tile_));
  }

 private:
  __device__ uint32_t copied(int i) const { return barriers_ + static_cast<uint32_t>(i) * 8; }
  __device__ uint32_t fixed(int i) const { return copied(kMostRingTiles + i); }
  __device__ uint32_t free(int i) const { return copied(2 * kMostRingTiles + i); }

  uint32_t barriers_;
  int tiles_;
  int tile_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace halo::cuda::conv
