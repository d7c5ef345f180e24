// backward_weight of depthwise convolutions with several rows of taps, half types, from the ring of
// rows_ring.cuh, as products of columns.
//
// For the groups k of 8 columns n of a row of y, and 16 columns m of x from what the first tap reads at n = 0, the
// product over the groups, x[k][m] y[k][n], has the terms of tap m - n of one row of taps on its diagonals. 8 groups of
// two rows are one product of 16 x 8. A warp walks down 64 columns with the last rows of y in registers, one sum of
// 16 x 8 for each row of taps. Operands come element by element, from wherever rows begin: every width and alignment
// costs the same.
#pragma once

#include <cstdint>

#include "../../device/mma.cuh"
#include "diagonals.cuh"
#include "rows_ring.cuh"

namespace halo::cuda::conv::depthwise {

inline constexpr int kGroup = 8;       ///< columns, 16 bytes
inline constexpr int kRowsInSum = 64;  ///< that a warp sums before it adds the sum to those before

__device__ __forceinline__ uint32_t load_element(uint32_t address) {
  uint16_t value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address));
  return value;
}

/// What a lane of a warp of 64 columns reads: elements in three groups of x, two of y.
struct HalfColumns {
  int element;    ///< column of y of its first; 8 and 16 further are the others
  uint32_t x[2];  ///< masks of words of two groups, ones where elements exist
  uint32_t y;
  bool masked;  ///< some of what the warp reads does not exist

  __device__ HalfColumns(const RowsParams& p, int column) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    element = static_cast<int>(threadIdx.x / 32) * kHalfRowsColumns + lane % 4 * 2 * kGroup + lane / 4;
    const int columns = min(p.tile, p.y.width - column);
    // Of what the first tap reads, these exist in x and are in the ring.
    const int first = max(0, p.pad_columns - column);
    const int last = min(p.x.width - column + p.pad_columns, columns + p.width - 1);
    const auto word = [&](int group, int from, int to) {
      const auto half = [&](int at) { return at >= from && at < to ? 0xffffu : 0u; };
      const int at = element + group * kGroup;
      return half(at) | half(at + kGroup) << 16;
    };
    x[0] = word(0, first, last);
    x[1] = word(1, first, last);
    y = word(0, 0, columns);
    masked = __any_sync(0xffffffffu, (x[0] & x[1] & y) != 0xffffffffu);
  }
};

/// Adds the products of two rows of x with the rows of y in reach of the taps. x, y: addresses of the lane's first
/// elements. gradients: of the lane's columns, two groups a word, the newest row first. Unless AllRows, exists_x and
/// exists_y tell which exist.
template <class T, bool Masked, bool AllRows, int March>
__device__ __forceinline__ void use_pair(const RowsParams& p, const HalfColumns& own, uint32_t x, uint32_t y,
                                         const bool (&exists_x)[2], const bool (&exists_y)[2],
                                         uint32_t (&gradients)[March + 1], float (&sums)[March][4]) {
  const auto where = [](uint32_t word, uint32_t mask, bool exists) {
    return (Masked ? word & mask : word) & (AllRows || exists ? 0xffffffffu : 0u);
  };
  uint32_t values[4];
#pragma unroll
  for (int i = March; i >= 2; --i) gradients[i] = gradients[i - 2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t x_row = x + r * p.x.pitch, y_row = y + r * p.y.pitch;
    const uint32_t first = load_element(x_row), second = load_element(x_row + device::kGranule);
    const uint32_t third = load_element(x_row + 2 * device::kGranule);
    values[2 * r] = where(first | second << 16, own.x[0], exists_x[r]);
    values[2 * r + 1] = where(second | third << 16, own.x[1], exists_x[r]);
    const uint32_t even = load_element(y_row), odd = load_element(y_row + device::kGranule);
    gradients[1 - r] = where(even | odd << 16, own.y, exists_y[r]);
  }
#pragma unroll
  for (int m = 0; m < March; ++m) {
    device::multiply_halves<T>(sums[m], values, {gradients[m + 1], gradients[m]});
  }
}

template <class T, int March>
__device__ __forceinline__ void use_halves(const RowsParams& p, uint32_t stages, Ring ring, const RowsBlock& block,
                                           float (&totals)[March][4]) {
  constexpr int kSize = 2;
  const HalfColumns own(p, block.column);
  float sums[March][4] = {};
  int rows_in_sums = 0;
  for_each_piece(p, block.split, [&](uint32_t plane, int row, int count) {
    const int x_row = row - p.pad_rows, steps = count + March - 1;
    const auto low = [&](const RowsSide& side, int64_t channel) {
      return low_bits(slice_of<T>(p, side, plane, channel) + block.column);
    };
    uint32_t x_low = low(p.x, block.channel / p.multiplier) - p.margin * kSize + x_row * p.x.width * kSize;
    uint32_t y_low = low(p.y, block.channel) + row * p.y.width * kSize;
    const int x_first = max(0, -x_row), x_last = min(steps, p.x.height - x_row);
    uint32_t gradients[March + 1] = {};
    for (int step = 0; step < steps; step += p.stage_rows) {
      const uint32_t stage = stages + ring.slot() * (p.x.bytes + p.y.bytes);
      uint32_t x = stage + (x_low & (p.x.line - 1)) + (own.element + p.margin - p.pad_columns) * kSize;
      uint32_t y = stage + p.x.bytes + (y_low & (p.y.line - 1)) + own.element * kSize;
      const int end = min(step + p.stage_rows, steps);
      ring.wait_copied();
      const auto use = [&]<bool Masked, bool AllRows>() {
#pragma unroll 2
        for (int at = step; at < end; at += 2, x += 2 * p.x.pitch, y += 2 * p.y.pitch) {
          use_pair<T, Masked, AllRows>(p, own, x, y,
                                       {at >= x_first && at < x_last, at + 1 >= x_first && at + 1 < x_last},
                                       {at < count, at + 1 < count}, gradients, sums);
        }
      };
      const bool all = step >= x_first && step + p.stage_rows <= min(x_last, count);
      if (!all) {
        use.template operator()<true, false>();
      } else if (own.masked) {
        use.template operator()<true, true>();
      } else {
        use.template operator()<false, true>();
      }
      ring.release(static_cast<int>(threadIdx.x % 32));
      ring.advance();
      x_low += p.stage_rows * p.x.width * kSize;
      y_low += p.stage_rows * p.y.width * kSize;
      if ((rows_in_sums += p.stage_rows) >= kRowsInSum) {
        rows_in_sums = 0;
#pragma unroll
        for (int m = 0; m < March; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            totals[m][i] += sums[m][i];
            sums[m][i] = 0;
          }
        }
      }
    }
  });
#pragma unroll
  for (int m = 0; m < March; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) totals[m][i] += sums[m][i];
  }
}

template <class T, int March>
__global__ void __launch_bounds__((kHalfRowsUsers + 1) * 32, 1)
    depthwise_rows_half(const __grid_constant__ RowsParams p) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(kBoxLine) unsigned char shared[];
  __shared__ Ring::Barriers barriers;
  const RowsBlock block(p);
  const Ring ring(barriers, p.stages);
  if (threadIdx.x == 0) ring.init(p.users);
  __syncthreads();
  const uint32_t stages = device::shared_address(shared);
  float totals[March][4] = {};
  if (static_cast<int>(threadIdx.x) / 32 == p.users) {
    load_rows<T>(p, stages, ring, block);
  } else {
    use_halves<T, March>(p, stages, ring, block, totals);
  }
  device::release_next_grid();
  add_diagonals<March>(totals, reinterpret_cast<float*>(shared), p.users, p.width, 0,
                       [&](int tap, double sum) { block.store(p, tap, sum); });
#endif
}

}  // namespace halo::cuda::conv::depthwise
