// backward_weight of half types from rows of both operands in shared memory.
//
// The sum runs over positions. A block owns 32 or 128 output channels times 64 input channels, of one row of taps; its
// steps are 64 positions of one row. Rows of y lie as ldmatrix wants them, 128 bytes with their 16-byte pieces
// exchanged. Rows of x do so too with packs (one tap, no stride); else they lie as in memory from the 16 bytes on in
// which they begin, and lanes pick what a tap reads.
#pragma once

#include "../device/async_copy.cuh"
#include "../device/mma.cuh"
#include "straight.h"

namespace halo::cuda::conv::straight {

template <class T>
struct WeightArguments {
  const T* x;
  const T* y;
  double* partials;  ///< [weights, splits]
};

__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

/// Byte of 16-byte piece `piece` of a row of 128 bytes.
__device__ __forceinline__ uint32_t piece_at(int row, int piece) {
  return static_cast<uint32_t>(row * 128 + (piece ^ row % 8) * 16);
}

template <class T, bool Packs>
struct WeightBlock {
  static constexpr int kRows = weight_rows(Packs), kColumns = kWeightColumns, kSteps = kWeightPositions;
  static constexpr int kColumnWarps = Packs ? 2 : 8, kTiles = 2, kColumnTiles = Packs ? 4 : 1;
  static constexpr int kTaps = Packs ? 1 : kWeightTaps;

  const WeightPlan& plan;
  const WeightArguments<T>& arguments;
  int row, channel, depth_tap, height_tap, width_tap;  ///< the block's first

  /// Position of a step.
  struct Step {
    int64_t image;
    int d, h, q;
  };
  __device__ __forceinline__ Step step_of(int64_t index) const {
    uint32_t at_w, at_h, at_d;
    const uint32_t image = plan.extents[0].divide(
        plan.extents[1].divide(plan.extents[2].divide(static_cast<uint32_t>(index), at_w), at_h), at_d);
    return {image, static_cast<int>(at_d), static_cast<int>(at_h), static_cast<int>(at_w) * kSteps};
  }
  /// Flat index of the first element of x that a row of a step reads; whether the row exists.
  __device__ __forceinline__ int64_t first_of(const Step& s, int c, bool& exists) const {
    const small_groups::GroupProblem& p = plan.problem;
    const int d = s.d * p.step[0] + p.origin[0] + depth_tap, h = s.h * p.step[1] + p.origin[1] + height_tap;
    exists = static_cast<unsigned>(d) < static_cast<unsigned>(p.source[0]) &&
             static_cast<unsigned>(h) < static_cast<unsigned>(p.source[1]) && channel + c < p.source_channels;
    return (s.image * p.source_channels + channel + c) * p.source_rows.plane_pitch + d * p.source_rows.outer_pitch +
           h * p.source_rows.inner_pitch + s.q * p.step[2] + p.origin[2] + width_tap;
  }

  /// Orders the rows of a step. A thread has the same rows and pieces in all of them.
  __device__ __forceinline__ void copy(uint32_t to, const Step& s) const {
    const small_groups::GroupProblem& p = plan.problem;
    const auto thread = static_cast<int>(threadIdx.x);
    const int r = thread / 8, piece = thread % 8;
    const int64_t y_plane = p.result_rows.plane_pitch;
    const T* y = arguments.y + (s.image * p.result_channels + row + r) * y_plane + s.d * p.result_rows.outer_pitch +
                 s.h * p.result_rows.inner_pitch + s.q + piece * 8;
    const int rows = s.q + piece * 8 < p.result[2] ? p.result_channels - row : 0;
#pragma unroll
    for (int i = 0; i < kRows; i += kWeightThreads / 8, y += kWeightThreads / 8 * y_plane)
      device::copy_async<16>(to + piece_at(r, piece) + i * 128, y, r + i < rows ? 16 : 0);
    to += kRows * 128;
    bool exists;
    if constexpr (Packs) {
      const T* x = arguments.x + first_of(s, r, exists) + piece * 8;
#pragma unroll
      for (int i = 0; i < kColumns; i += kWeightThreads / 8, x += kWeightThreads / 8 * p.source_rows.plane_pitch) {
        const bool there = exists && channel + r + i < p.source_channels && s.q + piece * 8 < p.source[2];
        device::copy_async<16>(to + piece_at(r, piece) + i * 128, x, there ? 16 : 0);
      }
    } else {
      constexpr int kSharers = kWeightThreads / kColumns;  // of a row
      const int c = thread / kSharers, share = thread % kSharers;
      const int64_t first = first_of(s, c, exists) & ~int64_t{7};
      const bool inside = first >= 0 && first + plan.granules * 8 <= p.source_rows.elements;
      const T* x = arguments.x + first + share * 8;
      to += static_cast<uint32_t>(c * plan.x_pitch + share * 16);
      for (int i = share; i < plan.granules; i += kSharers, x += kSharers * 8, to += kSharers * 16) {
        int bytes = exists ? 16 : 0;
        if (!inside && exists) {
          const int64_t left = p.source_rows.elements - first - i * 8;
          bytes = first + i * 8 < 0 ? 0 : static_cast<int>(max(int64_t{0}, min(left, int64_t{8}))) * 2;
        }
        device::copy_async<16>(to, x, bytes);
      }
    }
  }
};

template <class T, bool Packs>
__global__ void __launch_bounds__(kWeightThreads, 2)
    weight_kernel(const __grid_constant__ WeightPlan plan, const __grid_constant__ WeightArguments<T> arguments) {
  using Block = WeightBlock<T, Packs>;
  constexpr int kTiles = Block::kTiles, kColumnTiles = Block::kColumnTiles, kTaps = Block::kTaps;
  extern __shared__ __align__(16) unsigned char shared[];
  const small_groups::GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int t = lane % 4, g = lane / 4;
  auto rest = static_cast<int>(blockIdx.y);
  const int row_group = rest % plan.row_groups;
  rest /= plan.row_groups;
  const int channel_group = rest % plan.channel_groups;
  rest /= plan.channel_groups;
  const int tap_group = rest % plan.tap_groups, tap_row = rest / plan.tap_groups;
  const int tap_d = tap_row / p.kernel[1], tap_h = tap_row % p.kernel[1], tap_w = tap_group * kWeightTaps;
  const int taps = min(kTaps, p.kernel[2] - tap_w);
  const Block block{plan,
                    arguments,
                    row_group * Block::kRows,
                    channel_group * Block::kColumns,
                    p.taps[0].offset[0][tap_d],
                    p.taps[1].offset[0][tap_h],
                    p.taps[2].offset[0][tap_w]};
  const int dilation = p.kernel[2] > 1 ? p.taps[2].offset[0][1] : 0;
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int warp_row = warp / Block::kColumnWarps * 32, warp_column = warp % Block::kColumnWarps * kColumnTiles * 8;

  float sums[kTaps][kTiles][kColumnTiles][4] = {}, totals[kTaps][kTiles][kColumnTiles][4] = {};
  int64_t fetched = blockIdx.x;
  const auto fetch = [&](int slot) {
    if (fetched < plan.steps) block.copy(base + static_cast<uint32_t>(slot * plan.stage_bytes), block.step_of(fetched));
    device::copy_async_commit();
    fetched += gridDim.x;
  };
  for (int i = 0; i + 1 < kWeightStages; ++i) fetch(i);
  int slot = 0, count = 0;
  for (int64_t index = blockIdx.x; index < plan.steps; index += gridDim.x) {
    device::copy_async_wait<kWeightStages - 2>();
    __syncthreads();  // the stage has arrived, and everybody is done with the one before
    fetch((slot + kWeightStages - 1) % kWeightStages);
    const uint32_t y_at = base + static_cast<uint32_t>(slot * plan.stage_bytes), x_at = y_at + Block::kRows * 128;
    slot = (slot + 1) % kWeightStages;
    const auto s = block.step_of(index);
    const int column0 = s.q * p.step[2] + p.origin[2] + block.width_tap;  // of x
    const bool edge =
        column0 < 0 || column0 + (kWeightPositions - 1) * p.step[2] + (taps - 1) * dilation >= p.source[2];
    bool exists;
    const auto shift = static_cast<int>(block.first_of(s, warp_column + g, exists) & 7);
#pragma unroll
    for (int k = 0; k < kWeightPositions / 16; ++k) {
      uint32_t a[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        load_matrices(a[m], y_at + piece_at(warp_row + m * 16 + lane % 16, 2 * k + lane / 16));
      if constexpr (Packs) {
#pragma unroll
        for (int n = 0; n < kColumnTiles; n += 2) {
          uint32_t b[4];
          load_matrices(b, x_at + piece_at(warp_column + n * 8 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            device::multiply_halves<T>(sums[0][m][n], a[m], {b[0], b[1]});
            device::multiply_halves<T>(sums[0][m][n + 1], a[m], {b[2], b[3]});
          }
        }
      } else {
        const int first = (k * 16 + 2 * t) * p.step[2];
        const auto* const own = reinterpret_cast<const uint16_t*>(shared + (x_at - base)) +
                                (warp_column + g) * (plan.x_pitch / 2) + shift + first;
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
          if (tap >= taps) break;
          uint32_t part[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int offset = (i / 2 * 8 + i % 2) * p.step[2] + tap * dilation;
            part[i] = own[offset];
            if (edge && static_cast<unsigned>(column0 + first + offset) >= static_cast<unsigned>(p.source[2]))
              part[i] = 0;
          }
          const uint32_t b[2] = {part[0] | part[1] << 16, part[2] | part[3] << 16};
#pragma unroll
          for (int m = 0; m < kTiles; ++m) device::multiply_halves<T>(sums[tap][m][0], a[m], b);
        }
      }
    }
    // The tensor core rounds its sums toward zero: not too many of them.
    if (++count % kWeightFlush == 0 || index + gridDim.x >= plan.steps) {
#pragma unroll
      for (int i = 0; i < kTaps * kTiles * kColumnTiles * 4; ++i) {
        (&totals[0][0][0][0])[i] += (&sums[0][0][0][0])[i];
        (&sums[0][0][0][0])[i] = 0;
      }
    }
  }
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = block.row + warp_row + m * 16 + i / 2 * 8 + g;
          const int channel = block.channel + warp_column + n * 8 + 2 * t + i % 2;
          if (tap >= taps || row >= p.result_channels || channel >= p.source_channels) continue;
          const int64_t index =
              (int64_t{row} * p.source_channels + channel) * plan.taps + tap_row * p.kernel[2] + tap_w + tap;
          arguments.partials[index * gridDim.x + blockIdx.x] = totals[tap][m][n][i];
        }
      }
    }
  }
}

}  // namespace halo::cuda::conv::straight
