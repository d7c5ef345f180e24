// Weight gradients of half types as products of columns, where the sums of a warp's products become taps.
#pragma once

#include <cstddef>
#include <cstdint>

namespace halo::cuda::conv::depthwise {

inline constexpr int kSumPitch = 9, kSumSize = 16 * kSumPitch;  ///< of a 16 x 8 sum in shared memory

/// Shared memory of add_diagonals.
constexpr std::size_t diagonal_bytes(int warps, int march) {
  return static_cast<std::size_t>(warps * march * kSumSize) * sizeof(float);
}

/// sums[m], an accumulator of 16 x 8 products, has the terms of tap k of row m of taps where row - column is k + shift.
/// Adds those of the first `warps` warps in float64 and calls store(tap, sum). All threads of the block call it;
/// `shared` may hold what they have read before.
template <int March, class Store>
__device__ __forceinline__ void add_diagonals(const float (&sums)[March][4], float* shared, int warps, int width,
                                              int shift, const Store& store) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  __syncthreads();
  if (warp < warps) {
#pragma unroll
    for (int m = 0; m < March; ++m) {
      float* const tile = shared + (warp * March + m) * kSumSize + lane / 4 * kSumPitch + lane % 4 * 2;
      tile[0] = sums[m][0];
      tile[1] = sums[m][1];
      tile[8 * kSumPitch] = sums[m][2];
      tile[8 * kSumPitch + 1] = sums[m][3];
    }
  }
  __syncthreads();
  // Eight lanes a tap, one for each column.
  const int taps = March * width, rounded = (taps * 8 + 31) / 32 * 32;
  for (int i = static_cast<int>(threadIdx.x); i < rounded; i += static_cast<int>(blockDim.x)) {
    const int tap = min(i / 8, taps - 1), n = i % 8;
    const float* const from = shared + tap / width * kSumSize + (n + tap % width + shift) * kSumPitch + n;
    double sum = 0;
    for (int w = 0; w < warps; ++w) sum += static_cast<double>(from[w * March * kSumSize]);
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (n == 0 && i / 8 < taps) store(tap, sum);
  }
}

}  // namespace halo::cuda::conv::depthwise
