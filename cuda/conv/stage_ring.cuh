// Hand-overs between the warps that fill stages of shared memory and those that use them.
#pragma once

#include <cstdint>

#include "../device/mbarrier.cuh"
#include "../device/wgmma.cuh"

namespace halo::cuda::conv {

/// Slots in turn, and the barriers of each.
class Ring {
 public:
  static constexpr int kMost = 16;
  struct Barriers {
    uint64_t copied[kMost], released[kMost];
  };

  __device__ Ring(Barriers& barriers, int slots) : barriers_(device::shared_address(&barriers)), slots_(slots) {}

  __device__ void init(int users, int fillers = 1) const {
    for (int i = 0; i < slots_; ++i) {
      device::barrier_init(barriers_ + 8 * static_cast<uint32_t>(i), fillers);
      device::barrier_init(barriers_ + 8 * static_cast<uint32_t>(kMost + i), users);
    }
    device::barrier_init_fence();
  }
  /// Keeps the compiler from finding out anew where the barriers are. By a whole warp.
  __device__ __forceinline__ void keep() { barriers_ = __shfl_sync(0xffffffffu, barriers_, 0); }
  __device__ __forceinline__ int slot() const { return slot_; }
  __device__ __forceinline__ uint32_t copied() const { return barriers_ + 8 * static_cast<uint32_t>(slot_); }
  __device__ __forceinline__ uint32_t released() const { return copied() + 8 * kMost; }
  __device__ __forceinline__ void wait_released() const { device::barrier_wait(released(), parity_ ^ 1); }
  __device__ __forceinline__ void wait_copied() const { device::barrier_wait(copied(), parity_); }
  __device__ __forceinline__ void release(int lane) const {
    __syncwarp();
    if (lane == 0) device::barrier_arrive(released());
  }
  /// By each warp that has written to the slot itself.
  __device__ __forceinline__ void fill(int lane) const {
    __syncwarp();
    if (lane == 0) device::barrier_arrive(copied());
  }
  __device__ __forceinline__ void advance() {
    if (++slot_ == slots_) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  uint32_t barriers_;
  int slots_;
  int slot_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace halo::cuda::conv
