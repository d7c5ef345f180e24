// backward_weight of depthwise convolutions of half types, as products of columns.
//
// For 16 rows of y, 8 columns n of them and 16 columns m of x, the product over the rows, x[k][m] y[k][n], has the
// terms of tap m - n of a row of taps on its diagonals. A warp goes along the columns and adds such products up, one
// sum of 16 x 8 for each row of taps; x of 8 columns is read once. In the end the diagonals are added, in float64.
#pragma once

#include "../device/async_copy.cuh"
#include "../device/mma.cuh"
#include "../launch.h"
#include "depthwise_half.h"

namespace halo::cuda::conv::depthwise {

/// Copies the rows of one matrix to shared memory, zeros for what does not exist; a warp takes row after row. (row,
/// column): of the first element, whose address is `from`; both may lie outside.
template <int Bytes, class T>
__device__ __forceinline__ void copy_rows(uint32_t to, const HalfWeightGeometry& g,
                                          const HalfWeightGeometry::Side& side, const T* from, int row, int column) {
  constexpr int kElements = Bytes / static_cast<int>(sizeof(T)), kStep = 32 * kElements;
  const auto lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  for (int r = warp; r < side.rows; r += kMarchThreads / 32) {
    const bool exists = static_cast<unsigned>(g.piece != 0 ? row : row + r) < static_cast<unsigned>(side.height);
    const auto width = static_cast<unsigned>(exists ? side.width : 0);
    int at = column + r * g.piece + lane * kElements;
    const T* source = from + r * side.row_pitch + lane * kElements;
    uint32_t target = to + static_cast<uint32_t>(r * g.pitch + lane * Bytes);
#pragma unroll 4
    for (int v = lane; v < side.vectors; v += 32) {
      device::copy_async<Bytes>(target, source, static_cast<unsigned>(at) < width ? Bytes : 0);
      at += kStep;
      source += kStep;
      target += 32 * Bytes;
    }
  }
}
template <class T>
__device__ __forceinline__ void copy_side(uint32_t to, const HalfWeightGeometry& g,
                                          const HalfWeightGeometry::Side& side, const T* from, int row, int column) {
  switch (side.vector) {
    case 8: return copy_rows<16>(to, g, side, from, row, column);
    case 4: return copy_rows<8>(to, g, side, from, row, column);
    default: return copy_rows<4>(to, g, side, from, row, column);
  }
}

inline constexpr int kSumPitch = 9, kSumSize = 16 * kSumPitch;  ///< of a 16 x 8 sum in shared memory

/// Shared memory of add_diagonals.
template <int March>
inline constexpr std::size_t kDiagonalBytes = kMarchThreads / 32 * March* kSumSize * sizeof(float);

/// sums[m], an accumulator of 16 x 8 products, has the terms of tap k of row m of taps where row - column is k + shift.
/// Adds those of all warps in float64 and calls store(tap, sum). All kMarchThreads threads call it; `shared` may hold
/// what they have read before.
template <int March, class Store>
__device__ __forceinline__ void add_diagonals(const float (&sums)[March][4], float* shared, int width, int shift,
                                              const Store& store) {
  constexpr int kWarps = kMarchThreads / 32;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  __syncthreads();
#pragma unroll
  for (int m = 0; m < March; ++m) {
    float* const tile = shared + (warp * March + m) * kSumSize + lane / 4 * kSumPitch + lane % 4 * 2;
    tile[0] = sums[m][0];
    tile[1] = sums[m][1];
    tile[8 * kSumPitch] = sums[m][2];
    tile[8 * kSumPitch + 1] = sums[m][3];
  }
  __syncthreads();
  // Eight lanes a tap, one for each column.
  const int taps = March * width, rounded = (taps * 8 + 31) / 32 * 32;
  for (int i = static_cast<int>(threadIdx.x); i < rounded; i += kMarchThreads) {
    const int tap = min(i / 8, taps - 1), n = i % 8;
    const float* const from = shared + tap / width * kSumSize + (n + tap % width + shift) * kSumPitch + n;
    double sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += static_cast<double>(from[w * March * kSumSize]);
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (n == 0 && i / 8 < taps) store(tap, sum);
  }
}

template <class T, int March>
__global__ void __launch_bounds__(kMarchThreads, 3)
    depthwise_half_weight(const __grid_constant__ HalfWeightParams<T> p) {
  constexpr int kWarps = kMarchThreads / 32;
  extern __shared__ __align__(16) unsigned char shared[];
  const HalfWeightGeometry& g = p.geometry;
  const int64_t channel = blockIdx.x / static_cast<unsigned>(g.splits);
  const auto split = static_cast<uint32_t>(blockIdx.x % static_cast<unsigned>(g.splits));
  uint32_t column_tile, strip, plane;
  const int64_t outer = g.planes.divide(g.strips.divide(g.column_tiles.divide(split, column_tile), strip), plane);
  const int row = static_cast<int>(strip) * g.strip, column = static_cast<int>(column_tile) * g.columns;
  const auto slice = [&](const HalfWeightGeometry::Side& side, int64_t of) {
    return of * side.channel_pitch + outer * side.outer_pitch + plane * side.plane_pitch;
  };
  const int x_row = row - g.pad_rows, x_column = column - g.pad_columns;
  const auto y_shared = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t x_shared = y_shared + static_cast<uint32_t>(g.y.bytes);
  copy_side(y_shared, g, g.y, p.y + slice(g.y, channel) + row * g.y.row_pitch + column, row, column);
  copy_side(x_shared, g, g.x, p.x + slice(g.x, channel / p.multiplier) + x_row * g.x.row_pitch + x_column, x_row,
            x_column);
  device::copy_async_commit();
  device::copy_async_wait<0>();
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int sharers = kWarps / g.row_blocks, share = warp % sharers;
  const int first = g.column_blocks * share / sharers, last = g.column_blocks * (share + 1) / sharers;
  const auto offset = static_cast<uint32_t>((warp / sharers * 16 + lane % 16) * g.pitch + first * device::kGranule);
  uint32_t y_at = y_shared + offset, x_at = x_shared + offset;
  float sums[March][4] = {};
  uint32_t before[March][2];
#pragma unroll
  for (int m = 0; m < March; ++m) {
    device::load_transposed(x_at + static_cast<uint32_t>(m * g.pitch), before[m][0], before[m][1]);
  }
  for (int block = first; block < last; ++block) {
    uint32_t b[2];
    device::load_transposed(y_at, b[0], b[1]);
    y_at += device::kGranule;
    x_at += device::kGranule;
#pragma unroll
    for (int m = 0; m < March; ++m) {
      uint32_t next[2];
      device::load_transposed(x_at + static_cast<uint32_t>(m * g.pitch), next[0], next[1]);
      device::multiply_halves<T>(sums[m], {before[m][0], next[0], before[m][1], next[1]}, b);
      before[m][0] = next[0];
      before[m][1] = next[1];
    }
  }

  add_diagonals<March>(sums, reinterpret_cast<float*>(shared), p.width, g.shift, [&](int tap, double sum) {
    p.partials[(channel * March * p.width + tap) * g.splits + split] = sum;
  });
}

template <class T>
void launch_half_weight(int march, const HalfWeightParams<T>& params, cudaStream_t stream) {
  with_march(march, [&]<int March>(std::integral_constant<int, March>) {
    const auto operands = static_cast<std::size_t>(params.geometry.x.bytes + params.geometry.y.bytes);
    launch("conv depthwise half backward_weight", depthwise_half_weight<T, March>,
           dim3(static_cast<unsigned>(params.channels * params.geometry.splits)), dim3(kMarchThreads),
           std::max(operands, kDiagonalBytes<March>), stream, params);
  });
}

}  // namespace halo::cuda::conv::depthwise
