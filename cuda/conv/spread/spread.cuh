// Few channels out of many, unit stride (spread.cu): the warps that multiply, and the kernel.
#pragma once

#include "../../device/mbarrier.cuh"
#include "../../device/tf32_split.cuh"
#include "../../device/wgmma.cuh"
#include "../../device/wgmma_tf32_more.cuh"
#include "adder.cuh"

namespace halo::cuda::conv {

/// The channel tile's weights, split, as core matrices.
template <class Traits>
__device__ void lay_out_weights(const SpreadParams& p, const SpreadShared<Traits>& s, int channel_tile) {
  constexpr int kWords = Traits::kColumns * 8;
  for (int i = static_cast<int>(threadIdx.x); i < kSpreadSteps * kWords; i += kSpreadThreads) {
    const int step = i / kWords, word = i % kWords;
    const int n = word / 64 * 8 + word % 32 / 4, k = word / 32 % 2 * 4 + word % 4;  // core_matrix_word, backwards
    const int64_t from = spread_weight(p, channel_tile, step * 8 + k, n);
    const float value = from >= 0 ? __ldg(p.weights + from) : 0.0f;
    const uint32_t to = s.weights + static_cast<uint32_t>(step * Traits::kStepFloats + word) * 4;
    if constexpr (Traits::kAccurate) {
      const device::Tf32Pair pair = device::split_tf32(value);
      device::store_shared(to, pair.high);
      device::store_shared(to + kWords * 4, pair.low);
    } else {
      device::store_shared(to, device::round_tf32_finite(value));
    }
  }
  device::fence_async_proxy();
}

/// The tiles of a block in the order of the work.
struct SpreadWalk {
  int index, plane, tile;
  SpreadItem item;

  __device__ SpreadWalk(const SpreadParams& p)
      : index(static_cast<int>(blockIdx.x) / p.channel_tiles), tile(-1), item(p, index) {
    plane = item.first_source(p);
    next(p);
  }
  __device__ bool more(const SpreadParams& p) const { return index < p.items; }
  __device__ void next(const SpreadParams& p) {
    ++tile;
    while (tile >= item.tiles || plane >= item.end_source(p)) {
      if (item.tiles > 0 && plane + 1 < item.end_source(p)) {
        ++plane;
      } else {
        index += static_cast<int>(gridDim.x) / p.channel_tiles;
        if (index >= p.items) return;
        item = SpreadItem(p, index);
        plane = item.first_source(p);
      }
      tile = 0;
    }
  }
};

/// Two warpgroups multiply, each 64 positions of a tile. Sources go from global memory straight into registers, the
/// next tile's while this one's are multiplied.
template <class Traits>
struct SpreadMultiplier {
  static constexpr int kRegisters = Traits::kColumns / 2;
  // The tensor core truncates each addition: float32-accurate, it adds up no more than four steps (dense/kernel.cuh).
  static constexpr int kSums = Traits::kAccurate ? 2 : 1, kStepsOfSum = kSpreadSteps / kSums;
  const SpreadParams& p;
  const SpreadShared<Traits>& s;
  float sum[kSums][kRegisters];
  float raw[kSpreadSteps][4];
  uint32_t high[2][4], low[Traits::kAccurate ? 2 : 1][4];
  const float* from[2];  // the next tile's first channels, of this thread's two rows; null: zero

  __device__ __forceinline__ void locate(const SpreadWalk& at) {
    const int thread = static_cast<int>(threadIdx.x), row = thread / 32 * 16 + thread % 32 / 4;
    const int64_t plane = int64_t{p.source_extent[1]} * p.source_extent[2];
    const float* first = p.source + (int64_t{at.item.n} * p.channels + thread % 4) * p.source_plane + at.plane * plane;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int within = at.more(p) ? spread_row(p, at.item, at.tile, row + h * 8) : -1;
      from[h] = within >= 0 ? first + within : nullptr;
    }
  }

  /// Starts the loads of step `k`. Past the last channel the last ones are read again: their weights are zero.
  __device__ __forceinline__ void load(int k) {
    const int64_t far = min(k, p.channels / 8 - 1) * 8 * p.source_plane;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const at = from[i % 2];
      raw[k][i] = at != nullptr ? __ldg(at + far + (i / 2) * 4 * p.source_plane) : 0.0f;
    }
  }

  __device__ __forceinline__ void convert(int k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Traits::kAccurate) {
        const device::Tf32Pair pair = device::split_tf32_unguarded(raw[k][i]);
        high[k % 2][i] = pair.high;
        low[k % 2][i] = pair.low;
      } else {
        high[k % 2][i] = device::round_tf32_by_cut(raw[k][i]);
      }
    }
  }

  __device__ __forceinline__ void multiply(int k) {
    const uint64_t b = device::core_matrix_descriptor(s.weights + static_cast<uint32_t>(k * Traits::kStepFloats) * 4);
    const int own = k / kStepsOfSum, goes_on = k % kStepsOfSum > 0;
    device::wgmma_pin(high[k % 2]);
    if constexpr (Traits::kAccurate) device::wgmma_pin(low[k % 2]);
    device::wgmma_fence();
    if constexpr (Traits::kAccurate) {
      device::wgmma_tf32(sum[own], low[k % 2], b, goes_on);
      device::wgmma_tf32(sum[own], high[k % 2], device::descriptor_after(b, Traits::kColumns * 32), 1);
      device::wgmma_tf32(sum[own], high[k % 2], b, 1);
    } else {
      device::wgmma_tf32(sum[own], high[k % 2], b, goes_on);
    }
    device::wgmma_commit();
  }

  /// The tile's products to where the adders find them.
  __device__ __forceinline__ void hand_over(uint32_t results) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    const uint32_t to = results + static_cast<uint32_t>(lane % 4 * 2 * kSpreadPitch + row) * 4;
    device::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < kSums; ++i) device::wgmma_pin(sum[i]);
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const int column = i / 4 * 8 + i % 2, below = i / 2 % 2 * 8;
      const float value = kSums == 2 ? sum[0][i] + sum[kSums - 1][i] : sum[0][i];
      device::store_shared(to + static_cast<uint32_t>(column * kSpreadPitch + below) * 4, __float_as_uint(value));
    }
  }

  __device__ void run() {
    int buffer = 0;
    uint32_t parity = 1;
    SpreadWalk at(p);
    locate(at);
#pragma unroll
    for (int k = 0; k < kSpreadSteps; ++k) load(k);
    while (at.more(p)) {
      convert(0);
#pragma unroll
      for (int k = 0; k < kSpreadSteps; ++k) {
        multiply(k);
        if (k == 0) {  // while the tensor core is busy
          at.next(p);
          locate(at);
        }
        load(k);
        if (k + 1 == kSpreadSteps) break;
        device::wgmma_wait<1>();
        convert(k + 1);
      }
      device::barrier_wait(s.empty(buffer), parity);
      hand_over(s.result(buffer));
      __syncwarp();
      if (threadIdx.x % 32 == 0) device::barrier_arrive(s.full(buffer));
      buffer ^= 1;
      if (buffer == 0) parity ^= 1;
    }
  }
};

template <class Traits>
__global__ void __launch_bounds__(kSpreadThreads, 1)
    spread_kernel(const __grid_constant__ SpreadParams p, const __grid_constant__ PlainSum plain) {
  extern __shared__ __align__(128) float shared[];
  const SpreadShared<Traits> s(device::shared_address(shared));
  const int thread = static_cast<int>(threadIdx.x), channel_tile = static_cast<int>(blockIdx.x) % p.channel_tiles;
  if (thread == 0) {
    for (int i = 0; i < 2; ++i) {
      device::barrier_init(s.full(i), Traits::kMultipliers / 32);
      device::barrier_init(s.empty(i), SpreadAdder<Traits>::kWarps);
    }
    device::barrier_init_fence();
  }
  lay_out_weights<Traits>(p, s, channel_tile);
  for (int i = thread; i < p.ring * p.tile_channels * p.tile_lines * p.line; i += kSpreadThreads) {
    device::store_shared(s.sums + static_cast<uint32_t>(i) * 4, 0);
  }
  __syncthreads();
  if (thread < Traits::kMultipliers) {
    device::registers_increase<Traits::kMultiplierRegisters>();
    SpreadMultiplier<Traits>{p, s}.run();
  } else {
    device::registers_decrease<Traits::kAdderRegisters>();
    SpreadAdder<Traits>{p, plain, s, channel_tile}.run();
  }
}

}  // namespace halo::cuda::conv
