// Forward and backward_input of kernels of one tap: results[position][channel] = source^T weights^T.
//
// One warp brings boxes of 32 words by 32 channels, whose 16-byte pieces the copy engine exchanges by channel modulo 8.
// Two warpgroups multiply: a lane reads 16 bytes of a channel, which are a row each of its products, so that its
// results are 16 bytes of a channel again. They leave as boxes, too. The weights stay in shared memory, split.
//
// A warp's 32 words, with g = lane / 4, c = lane % 4: the lane has the g-th 16 bytes of channels 8 s + 2 c + {0, 1}.
//
// Split operands, and zeros that stand for what does not exist, make results that are not finite where plain sums have
// finite ones: those are computed again, in plain float32.
#pragma once

#include "../device/activation.cuh"
#include "../device/async_copy.cuh"
#include "../device/mbarrier.cuh"
#include "../device/number.cuh"
#include "../device/store_box.cuh"
#include "../device/tf32_split.cuh"
#include "../device/wgmma.cuh"
#include "../device/wgmma_half.cuh"
#include "plain_sum.cuh"
#include "pointwise.h"
#include "small_groups.h"
#include <cuda.h>

namespace halo::cuda::conv::pointwise {

using device::barrier_wait;

template <class T>
struct Arguments {
  small_groups::GatherArguments<T> tensors;
  PlainSumOf<T> plain;
  CUtensorMap source, result;  ///< words x channels x images
};

/// Shared memory, by address.
struct Layout {
  uint32_t weights, results, stages, full, empty, stage_bytes;
  __device__ Layout(const Plan& plan, const void* memory)
      : weights((device::shared_address(memory) + 1023) / 1024 * 1024),
        results(weights + plan.weight_bytes),
        stages(results + kResultBytes),
        full(stages + plan.stages * (kBoxBytes * 8 / plan.column_groups)),
        empty(full + kMostStages * 8),
        stage_bytes(kBoxBytes * 8 / plan.column_groups) {}
};

/// A place in the ring of stages and the parity of its round.
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
};

__device__ __forceinline__ void store_word(uint32_t address, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

/// What a lane multiplies of a chunk, in steps of 32 bytes of weights a column: 8 channels of float32, 16 of half
/// types.
template <class T, bool Split>
struct Fragments {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kTiles = kHalf ? 4 : 2;  ///< 64 rows each
  static constexpr int kSteps = kHalf ? 2 : 4;
  uint32_t high[kSteps][kTiles][4], low[Split ? kSteps : 1][kTiles][4];

  /// `raw`: 16 bytes of channels 8 s + 2 c + {0, 1}.
  __device__ __forceinline__ void set(int step, const uint32_t (&raw)[4][2][4]) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kHalf) {
          const auto& pair = raw[2 * step + i / 2];
          high[step][m][i] = __byte_perm(pair[0][m], pair[1][m], i % 2 == 0 ? 0x5410 : 0x7632);
        } else {
          const float x = __uint_as_float(raw[step][i / 2][2 * m + i % 2]);
          if constexpr (Split) {
            const device::Tf32Pair two = device::split_tf32_unguarded(x);
            high[step][m][i] = two.high;
            low[step][m][i] = two.low;
          } else {
            high[step][m][i] = device::round_tf32_by_cut(x);
          }
        }
      }
    }
  }
};

/// The block's weights in shared memory, as the tensor core reads them: parts, column groups, steps. A warp lays out a
/// step at a time, all its loads under way together.
template <class T, bool Split>
__device__ void prepare(const Plan& plan, const small_groups::GatherArguments<T>& tensors, uint32_t to, int first) {
  constexpr int kPer = 4 / sizeof(T), kEach = kColumns * 8 / 32;  // channels of a word, words of a lane
  const int lane = static_cast<int>(threadIdx.x % 32), k = lane % 8;
  const int steps = plan.chunks * Fragments<T, Split>::kSteps, all = plan.column_groups * steps;
  for (int i = static_cast<int>(threadIdx.x / 32); i < all; i += kThreads / 32) {
    const int column = first + i / steps * kColumns + lane / 8;
    const int channel = i % steps * (8 * kPer) + (kPer == 2 ? k * 2 : k % 4 * 2 + k / 4);
    T value[kEach][kPer];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
#pragma unroll
      for (int h = 0; h < kPer; ++h) {
        const bool exists = column + 4 * j < plan.result_channels && channel + h < plan.source_channels;
        const int64_t at = int64_t{column + 4 * j} * plan.weight_result + (channel + h) * plan.weight_source;
        value[j][h] = tensors.weight[exists ? at : 0];
        if (!exists) value[j][h] = T{};
      }
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const uint32_t at = to + i * kStepBytes + device::core_matrix_word(lane / 8 + 4 * j, k) * 4;
      if constexpr (kPer == 2) {
        store_word(at, value[j][0].bits | uint32_t{value[j][1].bits} << 16);
      } else if constexpr (Split) {
        const device::Tf32Pair two = device::split_tf32_unguarded(value[j][0]);
        store_word(at, two.high);
        store_word(at + all * kStepBytes, two.low);
      } else {
        store_word(at, device::round_tf32(value[j][0]));
      }
    }
  }
}

/// The copying warp: one lane of it.
template <class T>
__device__ __forceinline__ void bring(const Plan& plan, const Arguments<T>& arguments, const Layout& s) {
  Cursor cursor;
  const int boxes = 8 / plan.column_groups;
  for (int64_t item = blockIdx.x; item < plan.items; item += gridDim.x) {
    uint32_t tile;
    const auto image = static_cast<int>(plan.tiles.divide(static_cast<uint32_t>(item), tile));
    for (int chunk = 0; chunk < plan.chunks; ++chunk, cursor.next(plan.stages)) {
      barrier_wait(s.empty + cursor.stage * 8, cursor.parity ^ 1);
      const uint32_t full = s.full + cursor.stage * 8;
      device::barrier_expect(full, s.stage_bytes);
      for (int box = 0; box < boxes; ++box)
        device::copy_box(s.stages + cursor.stage * s.stage_bytes + box * kBoxBytes, &arguments.source,
                         (static_cast<int>(tile) * boxes + box) * 32, chunk * kChunk, image, full);
    }
  }
}

/// sum += the products of a chunk. Split: small ones first, in a sum of their own, since the tensor core cuts off what
/// falls below the last place of a sum.
template <class T, bool Split>
__device__ __forceinline__ void multiply_chunk(float (&sum)[Fragments<T, Split>::kTiles][32], uint32_t box,
                                               const uint32_t (&offset)[2], uint64_t weights, uint32_t part) {
  using F = Fragments<T, Split>;
  uint32_t raw[4][2][4];
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(raw[s][e][0]), "=r"(raw[s][e][1]), "=r"(raw[s][e][2]), "=r"(raw[s][e][3])
                   : "r"(box + offset[e] + s * 1024));
    }
  }
  F f;
  float own[Split ? F::kTiles : 1][32];
#pragma unroll
  for (int step = 0; step < F::kSteps; ++step) {
    f.set(step, raw);
    const uint64_t high = device::descriptor_after(weights, static_cast<uint32_t>(step) * kStepBytes);
    device::wgmma_fence();
#pragma unroll
    for (int m = 0; m < F::kTiles; ++m) {
      if constexpr (Split) {
        device::wgmma_tf32(own[m], f.low[step][m], high, step > 0);
        device::wgmma_tf32(own[m], f.high[step][m], device::descriptor_after(high, part), 1);
      } else if constexpr (F::kHalf) {
        device::wgmma_half<T>(sum[m], f.high[step][m], high);
      } else {
        device::wgmma_tf32(sum[m], f.high[step][m], high, 1);
      }
    }
  }
  if constexpr (Split) {
#pragma unroll
    for (int step = 0; step < F::kSteps; ++step) {
#pragma unroll
      for (int m = 0; m < F::kTiles; ++m)
        device::wgmma_tf32(own[m], f.high[step][m],
                           device::descriptor_after(weights, static_cast<uint32_t>(step) * kStepBytes), 1);
    }
  }
  device::wgmma_commit();
  device::wgmma_wait<0>();
#pragma unroll
  for (int m = 0; m < F::kTiles; ++m) {
    if constexpr (Split) {
      device::wgmma_pin(own[m]);
#pragma unroll
      for (int i = 0; i < 32; ++i) sum[m][i] += own[m][i];
    } else {
      device::wgmma_pin(sum[m]);
    }
  }
}

/// A warp's results again, as plain float32 chains, into its stage.
template <class T>
__device__ __noinline__ void plain_results(const Plan& plan, const Arguments<T>& arguments, uint32_t stage, int image,
                                           int word, int channel) {
  constexpr int kPer = 4 / sizeof(T);
  __syncwarp();
  for (int i = static_cast<int>(threadIdx.x % 32); i < 32 * kColumns; i += 32) {
    const int row = i / 32, at = i % 32, own = channel + row;
    if (own >= plan.result_channels || word + at >= plan.words) continue;
    float value[2] = {};
    for (int k = 0; k < kPer; ++k) {
      value[k] = arguments.plain.at(image, own, int64_t{word + at} * kPer + k);
      if (arguments.tensors.bias != nullptr) value[k] += device::to_accumulator(arguments.tensors.bias[own]);
      value[k] = device::call_activation(arguments.tensors.activation, value[k]);
    }
    store_word(stage + row * 128 + (((at / 4) ^ (row % 8)) * 16) + at % 4 * 4, device::pack_word<T>(value));
  }
}

/// A warp's results into its stage, as the copy engine wants them.
template <class T, bool Split>
__device__ __forceinline__ void stage_results(const float (&sum)[Fragments<T, Split>::kTiles][32], uint32_t stage,
                                              const uint32_t (&offset)[2]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      uint32_t word[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if constexpr (sizeof(T) == 2) {
          const float two[2] = {sum[k][4 * j + e], sum[k][4 * j + 2 + e]};
          word[k] = device::pack_word<T>(two);
        } else {
          word[k] = __float_as_uint(sum[k / 2][4 * j + k % 2 * 2 + e]);
        }
      }
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(stage + offset[e] + j * 1024), "r"(word[0]),
                   "r"(word[1]), "r"(word[2]), "r"(word[3])
                   : "memory");
    }
  }
}

/// What the multiplying warpgroups do. `first`: the block's first result channel.
template <class T, bool Split>
__device__ __forceinline__ void make_results(const Plan& plan, const Arguments<T>& arguments, const Layout& s,
                                             const float* biases, int first) {
  using F = Fragments<T, Split>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int g = lane / 4, c = lane % 4;
  const int group = plan.column_groups == 2 ? __shfl_sync(~0u, thread / kGroupThreads, 0) : 0;
  const int boxes = 8 / plan.column_groups, box = warp % boxes;
  const uint32_t offset[2] = {static_cast<uint32_t>(2 * c * 128 + (g ^ 2 * c) * 16),
                              static_cast<uint32_t>((2 * c + 1) * 128 + (g ^ (2 * c + 1)) * 16)};
  const uint32_t stage = s.results + warp * (kColumns * 128), chunk_bytes = F::kSteps * kStepBytes;
  const uint32_t part = plan.column_groups * plan.chunks * chunk_bytes;
  const uint64_t weights = device::core_matrix_descriptor(s.weights + group * plan.chunks * chunk_bytes);
  const int channel = first + group * kColumns;
  Cursor cursor;
  for (int64_t item = blockIdx.x; item < plan.items; item += gridDim.x) {
    uint32_t tile;
    const auto image = static_cast<int>(plan.tiles.divide(static_cast<uint32_t>(item), tile));
    const int word = (static_cast<int>(tile) * boxes + box) * 32;
    float sum[F::kTiles][32];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 bias = *reinterpret_cast<const float2*>(biases + group * kColumns + 8 * j + 2 * c);
#pragma unroll
      for (int m = 0; m < F::kTiles; ++m) {
        sum[m][4 * j] = sum[m][4 * j + 2] = bias.x;
        sum[m][4 * j + 1] = sum[m][4 * j + 3] = bias.y;
      }
    }
    uint64_t own = weights;
    for (int chunk = 0; chunk < plan.chunks; ++chunk, cursor.next(plan.stages)) {
      barrier_wait(s.full + cursor.stage * 8, cursor.parity);
      multiply_chunk<T, Split>(sum, s.stages + cursor.stage * s.stage_bytes + box * kBoxBytes, offset, own, part);
      own = device::descriptor_after(own, chunk_bytes);
      __syncwarp();
      if (lane == 0) device::barrier_arrive(s.empty + cursor.stage * 8);
    }
    float poison = 0;
#pragma unroll
    for (int m = 0; m < F::kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        poison = fmaf(sum[m][i], 0.0f, poison);
        if (!plan.smooth) sum[m][i] = fmaxf(sum[m][i], plan.slope * sum[m][i]);
      }
    }
    if (plan.smooth) {
#pragma unroll
      for (int m = 0; m < F::kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 32; ++i) sum[m][i] = device::call_activation(arguments.tensors.activation, sum[m][i]);
      }
    }
    if (lane == 0) device::store_wait_read();
    __syncwarp();
    stage_results<T, Split>(sum, stage, offset);
    if (__any_sync(~0u, poison != poison)) plain_results(plan, arguments, stage, image, word, channel);
    device::fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
      device::store_box(&arguments.result, word, channel, image, stage);
      device::store_commit();
    }
  }
  if (lane == 0) device::store_wait();
}

template <class T, bool Split>
__global__ void __launch_bounds__(kThreads, 1)
    pointwise_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float biases[2 * kColumns];
  const Layout s(plan, shared);
  const int first = static_cast<int>(blockIdx.y) * 2 * kColumns;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kColumns; i += kThreads) {
    const bool exists = arguments.tensors.bias != nullptr && first + i < plan.result_channels;
    biases[i] = exists ? device::to_accumulator(arguments.tensors.bias[first + i]) : 0.0f;
  }
  prepare<T, Split>(plan, arguments.tensors, s.weights, first);
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.stages; ++i) {
      device::barrier_init(s.full + i * 8, 1);
      device::barrier_init(s.empty + i * 8, 2 * kGroupThreads / 32);
    }
    device::barrier_init_fence();
  }
  device::fence_async_proxy();
  __syncthreads();
  if (threadIdx.x >= 2 * kGroupThreads) {
    device::registers_decrease<24>();
    if (threadIdx.x == 2 * kGroupThreads) bring(plan, arguments, s);
  } else {
    device::registers_increase<240>();
    make_results<T, Split>(plan, arguments, s, biases, first);
  }
}

}  // namespace halo::cuda::conv::pointwise
