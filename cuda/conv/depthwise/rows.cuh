// backward_weight of depthwise convolutions with several rows of taps, float32, from the ring of
// rows_ring.cuh.
//
// A thread has two columns, every tap's sum, and the last rows of the gradient in registers. It sums few enough terms
// in one register that the error stays below the bound; the sums of blocks are added in float64, in a fixed order.
#pragma once

#include <cstdint>

#include "../ordered_sum.cuh"
#include "rows_ring.cuh"
#include "tile.cuh"

namespace halo::cuda::conv::depthwise {

inline constexpr int kZeroBytes = kBoxLine;  ///< at the start of shared memory: what rows outside the tensor read
inline constexpr int kRowsInRegister = 32;   ///< that a thread sums before it adds the sum to those before

template <RowStart Start, int March, int Width>
__device__ __forceinline__ void use_rows(const RowsParams& p, const unsigned char* shared, Ring ring,
                                         const RowsBlock& block, float (&totals)[March * Width]) {
  constexpr int kTaps = March * Width, kSize = sizeof(float);
  const int own = static_cast<int>(threadIdx.x) * kPair;
  const bool exists = own < p.tile && block.column + own < p.y.width;
  const unsigned char* const no_x = shared + (Start == RowStart::Odd ? kSize : 0);
  const int x_offset = kZeroBytes + (exists ? own + p.margin - p.pad_columns : p.margin - p.pad_columns) * kSize;
  const int y_offset = kZeroBytes + p.x.bytes + own * kSize;
  float taps[kTaps] = {};
  int rows_in_taps = 0;
  for_each_piece(p, block.split, [&](uint32_t plane, int row, int count) {
    const int x_row = row - p.pad_rows;
    const auto low = [&](const RowsSide& side, int64_t channel) {
      return low_bits(slice_of<float>(p, side, plane, channel) + block.column);
    };
    uint32_t x_low = low(p.x, block.channel / p.multiplier) - p.margin * kSize + x_row * p.x.width * kSize;
    uint32_t y_low = low(p.y, block.channel) + row * p.y.width * kSize;
    const int x_first = max(0, -x_row);
    const unsigned x_count = max(0, min(count + March - 1, p.x.height - x_row) - x_first);
    const int y_count = exists ? count : 0;
    float gradients[March][kPair] = {};  // row modulo March
    for (int step = 0; step < count + March - 1; step += March) {
      const unsigned char* const stage = shared + ring.slot() * (p.x.bytes + p.y.bytes);
      const unsigned char* x = stage + x_offset + (x_low & (p.x.line - 1));
      const unsigned char* y = stage + y_offset + (y_low & (p.y.line - 1));
      ring.wait_copied();
#pragma unroll
      for (int u = 0; u < March; ++u) {
        load_pair(reinterpret_cast<const float*>(step + u < y_count ? y : shared), gradients[u]);
        float windows[kPair][Width];
        load_windows<float, Start>(static_cast<unsigned>(step + u - x_first) < x_count ? x : no_x, 0, windows);
#pragma unroll
        for (int c = 0; c < kPair; ++c) {
#pragma unroll
          for (int m = 0; m < March; ++m) {
#pragma unroll
            for (int k = 0; k < Width; ++k) {
              float& sum = taps[m * Width + k];
              sum = fmaf(gradients[(u - m + March) % March][c], windows[c][k], sum);
            }
          }
        }
        x += p.x.pitch;
        y += p.y.pitch;
      }
      ring.release(static_cast<int>(threadIdx.x % 32));
      ring.advance();
      x_low += March * p.x.width * kSize;
      y_low += March * p.y.width * kSize;
      if ((rows_in_taps += March) >= kRowsInRegister) {
        rows_in_taps = 0;
#pragma unroll
        for (int t = 0; t < kTaps; ++t) {
          totals[t] += taps[t];
          taps[t] = 0;
        }
      }
    }
  });
#pragma unroll
  for (int t = 0; t < kTaps; ++t) totals[t] += taps[t];
}

template <int March, int Width>
__global__ void __launch_bounds__((kRowsUsers + 1) * 32, March* Width > 30 ? 1 : 2)
    depthwise_rows(const __grid_constant__ RowsParams p) {
#if __CUDA_ARCH__ >= 900
  constexpr int kTaps = March * Width;
  extern __shared__ __align__(kBoxLine) unsigned char shared[];
  __shared__ Ring::Barriers barriers;
  __shared__ float warp_sums[kRowsUsers][kTaps];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const RowsBlock block(p);
  const Ring ring(barriers, p.stages);
  if (threadIdx.x == 0) ring.init(p.users);
  const bool padded = p.margin != 0 || p.y.width + Width - 1 > p.x.width;
  const int zeros = kZeroBytes + (padded ? p.stages * (p.x.bytes + p.y.bytes) : 0);
  for (int at = static_cast<int>(threadIdx.x) * 16; at < zeros; at += static_cast<int>(blockDim.x) * 16) {
    *reinterpret_cast<float4*>(shared + at) = float4{};
  }
  device::fence_async_proxy();
  __syncthreads();

  if (warp == p.users) {
    load_rows<float>(p, device::shared_address(shared) + kZeroBytes, ring, block);
  } else {
    float totals[kTaps] = {};
    if (p.pad_columns % kPair == 0) {
      use_rows<RowStart::Even, March, Width>(p, shared, ring, block, totals);
    } else {
      use_rows<RowStart::Odd, March, Width>(p, shared, ring, block, totals);
    }
    for_each_warp_sum(totals, [&](int t, float sum) { warp_sums[warp][t] = sum; });
  }
  device::release_next_grid();
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.x); t < kTaps; t += static_cast<int>(blockDim.x)) {
    double sum = 0;
    for (int w = 0; w < p.users; ++w) sum += warp_sums[w][t];
    block.store(p, t, sum);
  }
#endif
}

}  // namespace halo::cuda::conv::depthwise
