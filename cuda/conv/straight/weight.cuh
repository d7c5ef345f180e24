// backward_weight of half types from rows of both operands in shared memory: what blocks own and copy, and the kernel
// of one tap without stride where rows are whole 16 bytes. weight_runs.cu has that of other rows,
// weight_taps.cuh that of other taps.
//
// The sum runs over positions. A block owns 128 output channels times 64 input channels of one tap; its steps are 64
// positions of one row, whose rows lie as ldmatrix wants them, 128 bytes with their 16-byte pieces exchanged.
#pragma once

#include "../../device/async_copy.cuh"
#include "../../device/mma.cuh"
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

/// What a block owns: its first output and input channel, and the first of its taps.
template <class T, bool Packs>
struct WeightBlock {
  static constexpr int kRows = weight_rows(Packs), kColumns = kWeightColumns;

  const WeightPlan& plan;
  const WeightArguments<T>& arguments;
  int row, channel;
  int first_tap, flat_tap;               ///< in its row of taps, and of all
  int depth_tap, height_tap, width_tap;  ///< offsets in x

  __device__ __forceinline__ WeightBlock(const WeightPlan& plan, const WeightArguments<T>& arguments)
      : plan(plan), arguments(arguments) {
    const small_groups::GroupProblem& p = plan.problem;
    auto rest = static_cast<int>(blockIdx.y);
    row = rest % plan.row_groups * kRows;
    rest /= plan.row_groups;
    channel = rest % plan.channel_groups * kColumns;
    rest /= plan.channel_groups;
    const int tap_row = rest / plan.tap_groups;
    first_tap = rest % plan.tap_groups * kWeightTaps;
    flat_tap = tap_row * p.kernel[2] + first_tap;
    depth_tap = p.taps[0].offset[0][tap_row / p.kernel[1]];
    height_tap = p.taps[1].offset[0][tap_row % p.kernel[1]];
    width_tap = p.taps[2].offset[0][first_tap];
  }

  /// Position of a step.
  struct Step {
    int64_t image;
    int d, h, q;
  };
  __device__ __forceinline__ Step step_of(int64_t index) const {
    uint32_t at_w, at_h, at_d;
    const uint32_t image = plan.extents[0].divide(
        plan.extents[1].divide(plan.extents[2].divide(static_cast<uint32_t>(index), at_w), at_h), at_d);
    return {image, static_cast<int>(at_d), static_cast<int>(at_h), static_cast<int>(at_w) * plan.positions};
  }
  /// Flat index of the first element of x that a row of a step reads; whether its position exists.
  __device__ __forceinline__ int64_t first_of(const Step& s, int c, bool& exists) const {
    const small_groups::GroupProblem& p = plan.problem;
    const int d = s.d * p.step[0] + p.origin[0] + depth_tap, h = s.h * p.step[1] + p.origin[1] + height_tap;
    exists = static_cast<unsigned>(d) < static_cast<unsigned>(p.source[0]) &&
             static_cast<unsigned>(h) < static_cast<unsigned>(p.source[1]);
    return (s.image * p.source_channels + channel + c) * p.source_rows.plane_pitch + d * p.source_rows.outer_pitch +
           h * p.source_rows.inner_pitch + s.q * p.step[2] + p.origin[2] + width_tap;
  }
  /// The same of y.
  __device__ __forceinline__ int64_t first_of_y(const Step& s, int r) const {
    const small_groups::GroupProblem& p = plan.problem;
    return (s.image * p.result_channels + row + r) * p.result_rows.plane_pitch + s.d * p.result_rows.outer_pitch +
           s.h * p.result_rows.inner_pitch + s.q;
  }
  /// One of the block's `splits` sums for a weight; `tap` is of its own.
  __device__ __forceinline__ void store(int row, int channel, int tap, float sum, int split = 0, int splits = 1) const {
    const int64_t index = (int64_t{row} * plan.problem.source_channels + channel) * plan.taps + flat_tap + tap;
    arguments.partials[(index * gridDim.x + blockIdx.x) * splits + split] = sum;
  }
};

/// Eight neighbouring elements. Whole: they begin at a whole 16 bytes.
__device__ __forceinline__ uint4 load_eight(const unsigned char* at, bool whole) {
  if (whole) return *reinterpret_cast<const uint4*>(at);
  const auto odd = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) & 2);
  const auto* const words = reinterpret_cast<const uint32_t*>(at - odd);
  const uint32_t order = odd != 0 ? 0x5432 : 0x3210;
  return {__byte_perm(words[0], words[1], order), __byte_perm(words[1], words[2], order),
          __byte_perm(words[2], words[3], order), __byte_perm(words[3], words[4], order)};
}

/// Orders the rows of a step, those of y first. A thread has the same rows and pieces in all of them.
template <class T>
__device__ __forceinline__ void copy_packs(const WeightBlock<T, true>& block, uint32_t to,
                                           const typename WeightBlock<T, true>::Step& s) {
  const small_groups::GroupProblem& p = block.plan.problem;
  const auto thread = static_cast<int>(threadIdx.x);
  const int r = thread / 8, piece = thread % 8;
  const int64_t y_plane = p.result_rows.plane_pitch;
  const T* y = block.arguments.y + block.first_of_y(s, r) + piece * 8;
  const int rows = s.q + piece * 8 < p.result[2] ? p.result_channels - block.row : 0;
#pragma unroll
  for (int i = 0; i < block.kRows; i += kWeightThreads / 8, y += kWeightThreads / 8 * y_plane)
    device::copy_async<16>(to + piece_at(r, piece) + i * 128, y, r + i < rows ? 16 : 0);
  to += block.kRows * 128;
  bool exists;
  const T* x = block.arguments.x + block.first_of(s, r, exists) + piece * 8;
#pragma unroll
  for (int i = 0; i < block.kColumns; i += kWeightThreads / 8, x += kWeightThreads / 8 * p.source_rows.plane_pitch) {
    const bool there = exists && block.channel + r + i < p.source_channels && s.q + piece * 8 < p.source[2];
    device::copy_async<16>(to + piece_at(r, piece) + i * 128, x, there ? 16 : 0);
  }
}

template <class T>
__global__ void __launch_bounds__(kWeightThreads, 2)
    weight_packs_kernel(const __grid_constant__ WeightPlan plan, const __grid_constant__ WeightArguments<T> arguments) {
  using Block = WeightBlock<T, true>;
  constexpr int kColumnWarps = 2, kTiles = 2, kColumnTiles = 4;
  extern __shared__ __align__(16) unsigned char shared[];
  const small_groups::GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int t = lane % 4, g = lane / 4;
  const Block block(plan, arguments);
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int warp_row = warp / kColumnWarps * 32, warp_column = warp % kColumnWarps * kColumnTiles * 8;

  float sums[kTiles][kColumnTiles][4] = {}, totals[kTiles][kColumnTiles][4] = {};
  int64_t fetched = blockIdx.x;
  const auto fetch = [&](int slot) {
    if (fetched < plan.steps)
      copy_packs(block, base + static_cast<uint32_t>(slot * plan.stage_bytes), block.step_of(fetched));
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
#pragma unroll
    for (int k = 0; k < kWeightPackPositions / 16; ++k) {
      uint32_t a[kTiles][4];
#pragma unroll
      for (int m = 0; m < kTiles; ++m)
        load_matrices(a[m], y_at + piece_at(warp_row + m * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
      for (int n = 0; n < kColumnTiles; n += 2) {
        uint32_t b[4];
        load_matrices(b, x_at + piece_at(warp_column + n * 8 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          device::multiply_halves<T>(sums[m][n], a[m], {b[0], b[1]});
          device::multiply_halves<T>(sums[m][n + 1], a[m], {b[2], b[3]});
        }
      }
    }
    // The tensor core rounds its sums toward zero: not too many of them.
    if (++count % kWeightFlush == 0 || index + gridDim.x >= plan.steps) {
#pragma unroll
      for (int i = 0; i < kTiles * kColumnTiles * 4; ++i) {
        (&totals[0][0][0])[i] += (&sums[0][0][0])[i];
        (&sums[0][0][0])[i] = 0;
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = block.row + warp_row + m * 16 + i / 2 * 8 + g;
        const int channel = block.channel + warp_column + n * 8 + 2 * t + i % 2;
        if (row < p.result_channels && channel < p.source_channels) block.store(row, channel, 0, totals[m][n][i]);
      }
    }
  }
}

}  // namespace halo::cuda::conv::straight
