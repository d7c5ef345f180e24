// Weight gradients where x has few channels: sums over positions of (result channel) times (tap, channel of x). Here of
// rows of whole pieces of four elements; weight_runs.cuh has those of any others.
//
// A stage is kStep neighbouring positions of one row: those of all result channels of y, and the rows of x that their
// taps read. Each warp multiplies its share of the positions and keeps sums of all weights, which the block adds up at
// the end. So y is read once.
#pragma once

#include "../../device/async_copy.cuh"
#include "../../device/mma.cuh"
#include "../../device/number.cuh"
#include "../small_groups/tile.cuh"
#include "few_sources.h"

namespace halo::cuda::conv::few_sources {

inline constexpr int kWeightWarps = 8, kWeightThreads = kWeightWarps * 32;
inline constexpr int kRowTiles = kMostResults / 16, kColumnTiles = 4;
static_assert(kMostWeights <= kColumnTiles * 8);

/// A stage in shared memory. Rows of y meet different banks.
template <class T>
struct Stage {
  static constexpr int kYPitch = sizeof(T) == 2 ? kStep + 8 : kStep + 4;
  static constexpr int kXPitch = kStep + kReach + 8, kXPieces = kXPitch / 4;
  static constexpr int kXAt = kMostResults * kYPitch;  ///< elements
  static constexpr int kBytes = (kXAt + kTapRows * kSources * kXPitch) * int{sizeof(T)};
  static constexpr int kStages = sizeof(T) == 2 ? 8 : 5;
  static_assert(kStages * kBytes >= kWeightWarps * kMostResults * kColumnTiles * 8 * 4, "the sums of all warps");
};

template <class T>
struct WeightArguments {
  const T* x;
  const T* y;
  double* partials;  ///< [weights, splits]
};

/// Orders stages in turn.
template <class T>
struct WeightFeed {
  using S = Stage<T>;
  static constexpr int kXShare = (kTapRows * kSources * S::kXPieces + kWeightThreads - 1) / kWeightThreads;
  const Plan& plan;
  const WeightArguments<T>& arguments;
  uint32_t base;
  int64_t step;
  struct {  // pieces of x that the thread brings: beside the first, in rows and columns; elements of shared memory
    int64_t from;
    int row, column, to;
  } x[kXShare];

  __device__ WeightFeed(const Plan& plan, const WeightArguments<T>& arguments, uint32_t base)
      : plan(plan), arguments(arguments), base(base), step(blockIdx.x) {
#pragma unroll
    for (int k = 0; k < kXShare; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kWeightThreads, r = i / S::kXPieces;
      x[k].row = plan.first_row + r / plan.channels;
      x[k].column = plan.first_column - plan.lead + i % S::kXPieces * 4;
      x[k].from = r % plan.channels * plan.source_plane + int64_t{x[k].row} * plan.source_width + x[k].column;
      x[k].to = r < plan.tap_rows * plan.channels ? S::kXAt + r * S::kXPitch + i % S::kXPieces * 4 : -1;
    }
  }

  __device__ __forceinline__ void order(int stage) {
    if (step < plan.steps) {
      uint32_t chunk, row, depth;
      const int64_t image =
          int64_t{plan.depths.divide(plan.rows.divide(plan.columns.divide(static_cast<uint32_t>(step), chunk), row),
                                     depth)} *
              plan.groups +
          blockIdx.y;
      const int column = static_cast<int>(chunk) * kStep;
      const uint32_t to = base + static_cast<uint32_t>(stage * S::kBytes);
      const T* const y = arguments.y + image * plan.results * plan.result_plane + depth * plan.result_slice +
                         int64_t{row} * plan.result_width + column;
      const int thread = static_cast<int>(threadIdx.x), piece = thread % 32 * 4, down = thread / 32;
#pragma unroll
      for (int r = 0; r < kMostResults; r += kWeightWarps)
        device::copy_async<4 * sizeof(T)>(
            to + ((down + r) * S::kYPitch + piece) * sizeof(T), y + (down + r) * plan.result_plane + piece,
            column + piece < plan.result_width && down + r < plan.results ? 4 * sizeof(T) : 0);
      const T* const from = arguments.x + image * plan.channels * plan.source_plane + depth * plan.source_slice +
                            int64_t{row} * plan.source_width + column;
#pragma unroll
      for (int k = 0; k < kXShare; ++k) {
        const bool exists =
            static_cast<unsigned>(column + x[k].column) < static_cast<unsigned>(plan.source_width) &&
            static_cast<unsigned>(static_cast<int>(row) + x[k].row) < static_cast<unsigned>(plan.source_rows);
        if (x[k].to >= 0)
          device::copy_async<4 * sizeof(T)>(to + x[k].to * sizeof(T), from + x[k].from, exists ? 4 * sizeof(T) : 0);
      }
    }
    device::copy_async_commit();
    step += gridDim.x;
  }
};

using WeightSums = float[kRowTiles][kColumnTiles][4];

/// part = what the warp's positions of a stage give; half types: part +=. `at`: where its columns find the first
/// position of x; `even`: all of them at whole words.
template <class T, bool Split>
__device__ __forceinline__ void multiply_stage(WeightSums& part, const T* stage, const int (&at)[kColumnTiles],
                                               bool even, int warp, int lane) {
  using S = Stage<T>;
  const int g = lane / 4, t = lane % 4, first = warp * (kStep / kWeightWarps);
  if constexpr (sizeof(T) == 2) {
    const auto own = static_cast<uint32_t>(__cvta_generic_to_shared(stage)) +
                     static_cast<uint32_t>(lane % 16 * S::kYPitch + first + lane / 16 * 8) * 2;
    uint32_t a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(a[m][0]), "=r"(a[m][1]), "=r"(a[m][2]), "=r"(a[m][3])
                   : "r"(own + static_cast<uint32_t>(m * 16 * S::kYPitch * 2))
                   : "memory");
    }
    const auto* const x = reinterpret_cast<const uint16_t*>(stage) + S::kXAt + first + 2 * t;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const uint16_t* const from = x + at[n];
      uint32_t b[2];
      if (even) {
        b[0] = *reinterpret_cast<const uint32_t*>(from);
        b[1] = *reinterpret_cast<const uint32_t*>(from + 8);
      } else {
        b[0] = from[0] | uint32_t{from[1]} << 16;
        b[1] = from[8] | uint32_t{from[9]} << 16;
      }
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) device::multiply_halves<T>(part[m][n], a[m], b);
    }
  } else {
    const float* const x = stage + S::kXAt + first + t;
    const float* const y = stage + g * S::kYPitch + first + t;
#pragma unroll
    for (int step = 0; step < kStep / kWeightWarps; step += 8) {
      small_groups::Operand<4, Split> a[kRowTiles];
      small_groups::Operand<2, Split> b[kColumnTiles];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[m].set(i, y[(m * 16 + i % 2 * 8) * S::kYPitch + step + i / 2 * 4]);
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        b[n].set(0, x[at[n] + step]);
        b[n].set(1, x[at[n] + step + 4]);
      }
      if (step == 0) {
        small_groups::multiply_tiles<true, Split>(part, a, b);
      } else {
        small_groups::multiply_tiles<false, Split>(part, a, b);
      }
    }
  }
}

/// Adds up the sums of all warps; `all`: shared memory, [warp][row][column].
template <class T>
__device__ __forceinline__ void store_sums(const Plan& plan, const WeightArguments<T>& arguments,
                                           const WeightSums& sums, float* all, int warp, int lane) {
  const int g = lane / 4, t = lane % 4, weights = plan.taps * plan.channels;
  __syncthreads();
  constexpr int kColumns = kColumnTiles * 8, kEach = kMostResults * kColumns;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        all[warp * kEach + (m * 16 + i / 2 * 8 + g) * kColumns + n * 8 + 2 * t + i % 2] = sums[m][n][i];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < plan.results * kColumns; i += kWeightThreads) {
    const int column = i % kColumns, row = i / kColumns;
    if (column >= weights) continue;
    double sum = 0;
    for (int w = 0; w < kWeightWarps; ++w) sum += all[w * kEach + i];
    const int64_t index =
        ((int64_t{blockIdx.y} * plan.results + row) * plan.channels + column % plan.channels) * plan.taps +
        plan.tap[column / plan.channels];
    arguments.partials[index * gridDim.x + blockIdx.x] = sum;
  }
}

template <class T, bool Split>
__global__ void __launch_bounds__(kWeightThreads, 1)
    weight_kernel(const __grid_constant__ Plan plan, const __grid_constant__ WeightArguments<T> arguments) {
  using S = Stage<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4, weights = plan.taps * plan.channels;
  int at[kColumnTiles];
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
    const int column = n * 8 + g < weights ? n * 8 + g : 0, tap = column / plan.channels;
    at[n] = (plan.row[tap] * plan.channels + column % plan.channels) * S::kXPitch + plan.lead + plan.column[tap];
  }
  const bool even = __all_sync(0xffffffffu, (at[0] | at[1] | at[2] | at[3]) % 2 == 0);
  WeightFeed<T> feed(plan, arguments, static_cast<uint32_t>(__cvta_generic_to_shared(shared)));
  for (int i = 0; i + 1 < S::kStages; ++i) feed.order(i);
  WeightSums sums{}, part{};
  int stage = 0;
  for (int64_t step = blockIdx.x; step < plan.steps; step += gridDim.x) {
    device::copy_async_wait<S::kStages - 2>();
    __syncthreads();  // the stage has arrived, and everybody is done with the one before
    feed.order(stage == 0 ? S::kStages - 1 : stage - 1);
    multiply_stage<T, Split>(part, reinterpret_cast<const T*>(shared + stage * S::kBytes), at, even, warp, lane);
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
    // The tensor core rounds its sums toward zero: not too many of them.
    if (sizeof(T) == 4 || stage == 0 || step + gridDim.x >= plan.steps) {
      small_groups::promote(sums, part);
      small_groups::clear(part);
    }
  }
  device::copy_async_wait_all();
  store_sums(plan, arguments, sums, reinterpret_cast<float*>(shared), warp, lane);
}

}  // namespace halo::cuda::conv::few_sources
