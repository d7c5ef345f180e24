// Forward and backward_input of kernels of one tap: results[position][channel] = source^T weights^T.
//
// One warp brings boxes of 32 words by 32 channels, whose 16-byte pieces the copy engine exchanges by channel modulo 8.
// Two warpgroups multiply: a lane reads 16 bytes of a channel, which are a row each of its products, so that its
// results are 16 bytes of a channel again. They leave as boxes, too. The weights stay in shared memory, split.
//
// `Ragged` (rows.cuh): planes that begin at any address, of any length.
//
// A warp's 32 words, with g = lane / 4, c = lane % 4: the lane has the g-th 16 bytes of channels 8 s + 2 c + {0, 1}.
//
// Split operands, and zeros that stand for what does not exist, make results that are not finite where plain sums have
// finite ones: those are computed again, in plain float32.
#pragma once

#include "../../device/activation.cuh"
#include "../../device/store_box.cuh"
#include "../../device/wgmma_half.cuh"
#include "rows.cuh"

namespace halo::cuda::conv::pointwise {

using device::barrier_wait;

/// The copying warp: one lane of it.
template <class T>
__device__ __forceinline__ void bring(const Plan& plan, const Arguments<T>& arguments, const Layout<false>& s) {
  Cursor cursor;
  const int boxes = plan.boxes();
  for (Walk<false> at; at.find(plan); at.next()) {
    for (int chunk = 0; chunk < plan.chunks; ++chunk, cursor.next(plan.stages)) {
      barrier_wait(s.empty + cursor.stage * 8, cursor.parity ^ 1);
      const uint32_t full = s.full + cursor.stage * 8;
      device::barrier_expect(full, s.stage_bytes);
      for (int box = 0; box < boxes; ++box)
        device::copy_box(s.stages + cursor.stage * s.stage_bytes + box * kBoxBytes, &arguments.source,
                         (at.tile * boxes + box) * 32, chunk * kChunk, at.image, full);
    }
  }
}

/// 16 bytes of channels 8 s + 2 c + {0, 1} of a warp's box.
__device__ __forceinline__ void load_box(uint32_t (&raw)[4][2][4], uint32_t box, const uint32_t (&offset)[2]) {
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint4 four = load_granule(box + offset[e] + s * 1024);
      raw[s][e][0] = four.x, raw[s][e][1] = four.y, raw[s][e][2] = four.z, raw[s][e][3] = four.w;
    }
  }
}

/// sum += the products of a chunk. Split: small ones first, in a sum of their own, since the tensor core cuts off what
/// falls below the last place of a sum.
template <class T, bool Split>
__device__ __forceinline__ void multiply_chunk(float (&sum)[Fragments<T, Split>::kTiles][32],
                                               const uint32_t (&raw)[4][2][4], uint64_t weights, uint32_t part) {
  using F = Fragments<T, Split>;
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

/// Those of a warp's results that are NaN, as which sums that are not finite have been staged, as plain float32 chains:
/// not those that only rounding to T makes infinite, or they would depend on what else the warp has. `channel` and
/// `first`: of its first row and position.
template <class T, bool Ragged>
__device__ __noinline__ void plain_results(const Plan& plan, const Arguments<T>& arguments, uint32_t stage, int image,
                                           int first, int channel) {
  constexpr int kSize = sizeof(T), kCount = 128 / kSize;
  __syncwarp();
  for (int i = static_cast<int>(threadIdx.x % 32); i < kCount * kColumns; i += 32) {
    const int row = i / kCount, at = i % kCount, own = channel + row, byte = at * kSize;
    if (own >= plan.result_channels || static_cast<unsigned>(first + at) >= static_cast<unsigned>(plan.plane)) continue;
    T* to;
    if constexpr (Ragged) {
      to = shared_element<T>(stage + row * plan.result_pitch + byte +
                             lead_of_channel(arguments.tensors.result, plan, image, plan.result_channels, own));
    } else {
      to = shared_element<T>(stage + row * 128 + ((byte / 16) ^ (row % 8)) * 16 + byte % 16);
    }
    if (!isnan(device::to_accumulator(*to))) continue;
    float value = arguments.plain.at(image, own, first + at);
    if (arguments.tensors.bias != nullptr) value += device::to_accumulator(arguments.tensors.bias[own]);
    *to = device::from_accumulator<T>(device::call_activation(arguments.tensors.activation, value));
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
      words_of<T, Split>(word, sum, j, e);
      device::store_shared(stage + offset[e] + j * 1024, word[0], word[1], word[2], word[3]);
    }
  }
}

/// What the multiplying warpgroups do. `first`: the block's first result channel.
template <class T, bool Split, bool Ragged>
__device__ __forceinline__ void make_results(const Plan& plan, const Arguments<T>& arguments, const Layout<Ragged>& s,
                                             const float* biases, int first) {
  using F = Fragments<T, Split>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int g = lane / 4, c = lane % 4;
  const int group = plan.column_groups == 2 ? __shfl_sync(~0u, thread / kGroupThreads, 0) : 0;
  const int boxes = plan.boxes(), box = warp % boxes;
  const uint32_t offset[2] = {static_cast<uint32_t>(2 * c * 128 + (g ^ 2 * c) * 16),
                              static_cast<uint32_t>((2 * c + 1) * 128 + (g ^ (2 * c + 1)) * 16)};
  const uint32_t stage =
      s.results + (Ragged ? group * kColumns * plan.result_pitch + kLine + box * 128 : warp * (kColumns * 128));
  const uint32_t chunk_bytes = F::kSteps * kStepBytes;
  const uint32_t part = plan.column_groups * plan.chunks * chunk_bytes;
  const uint64_t weights = device::core_matrix_descriptor(s.weights + group * plan.chunks * chunk_bytes);
  const int channel = first + group * kColumns;
  Cursor cursor;
  uint32_t parity = 1;
  for (Walk<Ragged> at; at.find(plan); at.next(), parity ^= 1) {
    const int word = (at.tile * boxes + box) * 32;
    const int position = word * (4 / int{sizeof(T)}) - (Ragged ? plan.shift : 0);
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
    [[maybe_unused]] const RowPieces<T> pieces(plan, arguments.tensors.source, at.image, plan.source_channels,
                                               plan.source_pitch, lane);
    for (int chunk = 0; chunk < plan.chunks; ++chunk, cursor.next(plan.stages)) {
      barrier_wait(s.full + cursor.stage * 8, cursor.parity);
      const uint32_t source = s.stages + cursor.stage * s.stage_bytes;
      uint32_t raw[4][2][4];
      if constexpr (Ragged) {
        load_rows(raw, source + box * 128, pieces, plan.source_pitch, plan.source_channels - chunk * kChunk, lane);
      } else {
        load_box(raw, source + box * kBoxBytes, offset);
      }
      multiply_chunk<T, Split>(sum, raw, own, part);
      own = device::descriptor_after(own, chunk_bytes);
      __syncwarp();
      if (lane == 0) device::barrier_arrive(s.empty + cursor.stage * 8);
    }
    if constexpr (Ragged) clear_outside<T, Split>(sum, position + g * (16 / int{sizeof(T)}), plan.plane);
    float poison = 0;
#pragma unroll
    for (int m = 0; m < F::kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 32; ++i) poison = fmaf(sum[m][i], 0.0f, poison);
    }
    const bool again = __any_sync(~0u, poison != poison);
    if (again) {  // infinities become NaN
#pragma unroll
      for (int m = 0; m < F::kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 32; ++i) sum[m][i] = fmaf(sum[m][i], 0.0f, sum[m][i]);
      }
    }
    if (!plan.smooth) {
#pragma unroll
      for (int m = 0; m < F::kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 32; ++i) sum[m][i] = fmaxf(sum[m][i], fmaf(plan.slope, sum[m][i], 0.0f));  // no -0
      }
    } else {
#pragma unroll
      for (int m = 0; m < F::kTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 32; ++i) sum[m][i] = device::call_activation(arguments.tensors.activation, sum[m][i]);
      }
    }
    if constexpr (Ragged) {
      barrier_wait(s.stored, parity);
      const RowPieces<T> to(plan, arguments.tensors.result, at.image, plan.result_channels, plan.result_pitch, lane);
      stage_rows<T, Split>(sum, stage, to, plan.result_pitch);
    } else {
      if (lane == 0) device::store_wait_read();
      __syncwarp();
      stage_results<T, Split>(sum, stage, offset);
    }
    if (again) plain_results<T, Ragged>(plan, arguments, stage, at.image, position, channel);
    if constexpr (!Ragged) device::fence_async_proxy();
    __syncwarp();
    if (lane != 0) continue;
    if constexpr (Ragged) {
      device::barrier_arrive(s.staged);
    } else {
      device::store_box(&arguments.result, word, channel, at.image, stage);
      device::store_commit();
    }
  }
  if (!Ragged && lane == 0) device::store_wait();
}

template <class T, bool Split, bool Ragged>
__global__ void __launch_bounds__(kThreads, 1)
    pointwise_kernel(const __grid_constant__ Plan plan, const __grid_constant__ Arguments<T> arguments) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ float biases[2 * kColumns];
  const Layout<Ragged> s(plan, shared);
  const int first = static_cast<int>(blockIdx.y) * plan.column_groups * kColumns;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * kColumns; i += kThreads) {
    const int own = first + channel_of_column<T, Ragged>(i);
    const bool exists = arguments.tensors.bias != nullptr && own < plan.result_channels;
    biases[i] = exists ? device::to_accumulator(arguments.tensors.bias[own]) : 0.0f;
  }
  prepare<T, Split, Ragged>(plan, arguments.tensors, s.weights, first);
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.stages; ++i) {
      device::barrier_init(s.full + i * 8, 1);
      device::barrier_init(s.empty + i * 8, 2 * kGroupThreads / 32);
    }
    if constexpr (Ragged) {
      device::barrier_init(s.staged, 2 * kGroupThreads / 32);
      device::barrier_init(s.stored, kStoringWarps);
    }
    device::barrier_init_fence();
  }
  device::fence_async_proxy();
  __syncthreads();
  if (threadIdx.x >= 2 * kGroupThreads) {
    device::registers_decrease<Ragged ? 72 : 24>();
    if constexpr (Ragged) {
      const int lane = static_cast<int>(threadIdx.x % 32),
                warp = static_cast<int>(threadIdx.x - 2 * kGroupThreads) / 32;
      if (warp == 0) {
        bring_rows(plan, arguments, s, lane);
      } else {
        store_tiles(plan, arguments, s, first, warp - 1, lane);
      }
    } else if (threadIdx.x == 2 * kGroupThreads) {
      bring(plan, arguments, s);
    }
  } else {
    device::registers_increase<Ragged ? 216 : 240>();
    make_results<T, Split, Ragged>(plan, arguments, s, biases, first);
  }
}

}  // namespace halo::cuda::conv::pointwise
