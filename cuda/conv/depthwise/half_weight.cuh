// backward_weight of depthwise convolutions of half types with one row of taps, as products of columns.
//
// For 16 rows of y, 8 columns n of them and 16 columns m of x, the product over the rows, x[k][m] y[k][n], has the
// terms of tap m - n on its diagonals. A warp goes along the columns and adds such products up; x of 8 columns is read
// once. In the end the diagonals are added, in float64.
#pragma once

#include "../../device/async_copy.cuh"
#include "../../device/mma.cuh"
#include "../../launch.h"
#include "depthwise.h"
#include "diagonals.cuh"

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

template <class T>
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
  const auto corner = [&](const HalfWeightGeometry::Side& side, int64_t of) {
    return of * side.channel_pitch + outer * side.outer_pitch + plane * side.plane_pitch + row * side.row_pitch;
  };
  const int x_column = column - g.pad_columns;
  const auto y_shared = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t x_shared = y_shared + static_cast<uint32_t>(g.y.bytes);
  copy_side(y_shared, g, g.y, p.y + corner(g.y, channel) + column, row, column);
  copy_side(x_shared, g, g.x, p.x + corner(g.x, channel / p.multiplier) + x_column, row, x_column);
  device::copy_async_commit();
  device::copy_async_wait<0>();
  __syncthreads();

  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int sharers = kWarps / g.row_blocks, share = warp % sharers;
  const int first = g.column_blocks * share / sharers, last = g.column_blocks * (share + 1) / sharers;
  const auto offset = static_cast<uint32_t>((warp / sharers * 16 + lane % 16) * g.pitch + first * device::kGranule);
  uint32_t y_at = y_shared + offset, x_at = x_shared + offset;
  float sums[1][4] = {};
  uint32_t before[2];
  device::load_transposed(x_at, before[0], before[1]);
  for (int block = first; block < last; ++block) {
    uint32_t b[2], next[2];
    device::load_transposed(y_at, b[0], b[1]);
    y_at += device::kGranule;
    x_at += device::kGranule;
    device::load_transposed(x_at, next[0], next[1]);
    device::multiply_halves<T>(sums[0], {before[0], next[0], before[1], next[1]}, b);
    before[0] = next[0];
    before[1] = next[1];
  }

  add_diagonals(sums, reinterpret_cast<float*>(shared), kWarps, p.geometry.width, g.shift,
                [&](int tap, double sum) { p.partials[(channel * p.geometry.width + tap) * g.splits + split] = sum; });
}

template <class T>
void launch_half_weight(const HalfWeightParams<T>& params, cudaStream_t stream) {
  const auto operands = static_cast<std::size_t>(params.geometry.x.bytes + params.geometry.y.bytes);
  launch("conv depthwise half backward_weight", depthwise_half_weight<T>,
         dim3(static_cast<unsigned>(params.channels * params.geometry.splits)), dim3(kMarchThreads),
         std::max(operands, diagonal_bytes(kMarchThreads / 32, 1)), stream, params);
}

}  // namespace halo::cuda::conv::depthwise
