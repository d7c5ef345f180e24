// Weight gradients where x has few channels, of rows of any length and alignment: as weight.cuh, but rows
// lie in shared memory as they do in memory, and each is read from where it begins.
#pragma once

#include "../granule_rows.cuh"
#include "weight.cuh"

namespace halo::cuda::conv::few_sources {

/// A stage in shared memory: rows as they lie in memory, from the granule on in which they begin. Those of neighbouring
/// channels meet different banks.
template <class T>
struct RunsStage {
  static constexpr int kStep = runs_step(sizeof(T)), kShare = kStep / kWeightWarps;  ///< positions, of a warp
  static constexpr int kGranule = device::kGranule / int{sizeof(T)};                 ///< elements
  static constexpr int kYPitch = kStep + kGranule;
  static constexpr int kXPitch = (kStep + kReach + 2 * kGranule) / kGranule * kGranule;
  static constexpr int kXAt = kMostResults * kYPitch;  ///< elements
  static constexpr int kBytes = (kXAt + kTapRows * kSources * kXPitch) * int{sizeof(T)};
  static constexpr int kStages = sizeof(T) == 2 ? 3 : 5;
  static constexpr int kZerosAt = kStages * kBytes;  ///< a row of x that does not exist
  static constexpr int kAllBytes = kZerosAt + kXPitch * int{sizeof(T)};
  static_assert(kZerosAt >= kWeightWarps * kMostResults * kColumnTiles * 8 * 4, "the sums of all warps");
};

/// What all warps know of a stage.
struct StageHead {
  int column, left, row;  ///< of y: the first, and from there to the end of the row
  uint32_t x, y;          ///< elements, modulo 2^32: what the first tap reads first, and the first of y
};

/// Copies stages in turn. A lane has a row in all of them: of y, or of x behind those.
template <class T>
struct RunsFeed {
  using S = RunsStage<T>;
  const Plan& plan;
  const WeightArguments<T>& arguments;
  bool of_y, exists;
  int down;       ///< rows of x from the first that a tap reads
  int64_t apart;  ///< elements from the first row of the operand
  uint32_t to;    ///< bytes of a stage
  int64_t step;

  __device__ RunsFeed(const Plan& plan, const WeightArguments<T>& arguments, int warp, int lane)
      : plan(plan), arguments(arguments), step(blockIdx.x) {
    const int row = warp + lane * kWeightWarps, r = row - plan.results;
    of_y = r < 0;
    exists = r < plan.tap_rows * plan.channels;
    down = of_y ? 0 : r / plan.channels;
    apart = of_y ? row * plan.result_plane : r % plan.channels * plan.source_plane + int64_t{down} * plan.source_width;
    to = static_cast<uint32_t>(of_y ? row * S::kYPitch : S::kXAt + r * S::kXPitch) * uint32_t{sizeof(T)};
  }

  __device__ __forceinline__ void order(uint32_t stage, uint32_t copied, StageHead& head, int lane) {
    if (step >= plan.steps) return;
    uint32_t chunk, row, depth;
    const uint32_t batch =
        plan.depths.divide(plan.rows.divide(plan.columns.divide(static_cast<uint32_t>(step), chunk), row), depth);
    const int64_t image = int64_t{batch} * plan.groups + blockIdx.y;
    const int column = static_cast<int>(chunk) * S::kStep, left = plan.result_width - column;
    const int source_row = static_cast<int>(row) + plan.first_row;
    const T* const y = arguments.y + image * plan.results * plan.result_plane + depth * plan.result_slice +
                       int64_t{row} * plan.result_width + column;
    const T* const x = arguments.x + image * plan.channels * plan.source_plane + depth * plan.source_slice +
                       int64_t{source_row} * plan.source_width + column + plan.first_column;
    const auto element = [](const T* at) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) / sizeof(T)); };
    if (threadIdx.x == 0) head = {column, left, static_cast<int>(row), element(x), element(y)};
    const bool there =
        exists && (of_y || static_cast<unsigned>(source_row + down) < static_cast<unsigned>(plan.source_rows));
    const int count = min(S::kStep, left) + (of_y ? 0 : plan.reach);
    const T* const begin = of_y ? arguments.y : arguments.x;
    start_runs(copied, (of_y ? y : x) + apart, there ? static_cast<uint32_t>(count) * uint32_t{sizeof(T)} : 0,
               stage + to, begin, begin + (of_y ? plan.result_elements : plan.source_elements), lane);
    step += gridDim.x;
  }
};

/// Where a lane finds its operands in a stage, in elements; and with edges which of them exist.
struct LanePlaces {
  int y;                       ///< its first position of the first result
  int x[kColumnTiles];         ///< that of its columns
  int left;                    ///< positions of y
  int x_column[kColumnTiles];  ///< of x, of `x_width`
  int x_width;

  template <bool Edge>
  __device__ __forceinline__ bool has_y(int i) const {
    return !Edge || i < left;
  }
  template <bool Edge>
  __device__ __forceinline__ bool has_x(int n, int i) const {
    return !Edge || (i < left && static_cast<unsigned>(x_column[n] + i) < static_cast<unsigned>(x_width));
  }
};

/// Four neighbouring half types from any element on.
__device__ __forceinline__ uint2 load_four(const uint16_t* at) {
  const auto odd = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) / 2 % 2);
  const auto* const words = reinterpret_cast<const uint32_t*>(at - odd);
  const uint32_t order = odd != 0 ? 0x5432 : 0x3210;
  return {__byte_perm(words[0], words[1], order), __byte_perm(words[1], words[2], order)};
}

/// Zeros for those of two that do not exist.
__device__ __forceinline__ uint32_t keep(uint32_t two, bool first, bool second) {
  return two & ((first ? 0xffffu : 0u) | (second ? 0xffff0000u : 0u));
}

/// part = what the warp's positions of a stage give; half types: part +=, and a lane has four neighbouring positions:
/// sums do not mind their order.
template <class T, bool Split, bool Edge>
__device__ __forceinline__ void multiply_runs(WeightSums& part, const T* stage, const LanePlaces& at) {
  using S = RunsStage<T>;
  if constexpr (sizeof(T) == 2) {
    const auto* const elements = reinterpret_cast<const uint16_t*>(stage);
#pragma unroll 1
    for (int first = 0; first < S::kShare; first += 16) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint2 four = load_four(elements + at.y + first + (m * 16 + h * 8) * S::kYPitch);
          a[m][h] = keep(four.x, at.has_y<Edge>(first), at.has_y<Edge>(first + 1));
          a[m][2 + h] = keep(four.y, at.has_y<Edge>(first + 2), at.has_y<Edge>(first + 3));
        }
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const uint2 four = load_four(elements + at.x[n] + first);
        const uint32_t b[2] = {keep(four.x, at.has_x<Edge>(n, first), at.has_x<Edge>(n, first + 1)),
                               keep(four.y, at.has_x<Edge>(n, first + 2), at.has_x<Edge>(n, first + 3))};
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) device::multiply_halves<T>(part[m][n], a[m], b);
      }
    }
  } else {
#pragma unroll
    for (int step = 0; step < S::kShare; step += 8) {
      small_groups::Operand<4, Split> a[kRowTiles];
      small_groups::Operand<2, Split> b[kColumnTiles];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int position = step + i / 2 * 4;
          const float value = stage[at.y + (m * 16 + i % 2 * 8) * S::kYPitch + position];
          a[m].set(i, at.has_y<Edge>(position) ? value : 0.0f);
        }
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float value = stage[at.x[n] + step + i * 4];
          b[n].set(i, at.has_x<Edge>(n, step + i * 4) ? value : 0.0f);
        }
      }
      if (step == 0) {
        small_groups::multiply_tiles<true, Split>(part, a, b);
      } else {
        small_groups::multiply_tiles<false, Split>(part, a, b);
      }
    }
  }
}

template <class T, bool Split>
__global__ void __launch_bounds__(kWeightThreads, 1)
    weight_runs_kernel(const __grid_constant__ Plan plan, const __grid_constant__ WeightArguments<T> arguments) {
  using S = RunsStage<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ StageHead heads[S::kStages];
  __shared__ uint64_t copied[S::kStages];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int g = lane / 4, t = lane % 4, weights = plan.taps * plan.channels;
  const int first = warp * S::kShare + t * (sizeof(T) == 2 ? 4 : 1);  // position of the lane
  int tap_row[kColumnTiles], row_at[kColumnTiles], tap_column[kColumnTiles];
  uint32_t behind[kColumnTiles];  // elements of x, from the first row to that of the column
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
    const int column = n * 8 + g < weights ? n * 8 + g : 0, tap = column / plan.channels, c = column % plan.channels;
    tap_row[n] = plan.row[tap];
    row_at[n] = S::kXAt + (tap_row[n] * plan.channels + c) * S::kXPitch;
    tap_column[n] = plan.column[tap];
    behind[n] = static_cast<uint32_t>(c * plan.source_plane + tap_row[n] * plan.source_width);
  }
  const auto y_behind = static_cast<uint32_t>(g * plan.result_plane);  // rows that are eight results apart begin alike
  if (threadIdx.x < S::kStages) device::barrier_init(device::shared_address(&copied[threadIdx.x]), kWeightWarps);
  for (int i = static_cast<int>(threadIdx.x); i < S::kXPitch; i += kWeightThreads)
    reinterpret_cast<T*>(shared + S::kZerosAt)[i] = T{};
  device::barrier_init_fence();
  __syncthreads();
  RunsFeed<T> feed(plan, arguments, warp, lane);
  const auto order = [&](int stage) {
    feed.order(device::shared_address(shared) + static_cast<uint32_t>(stage * S::kBytes),
               device::shared_address(&copied[stage]), heads[stage], lane);
  };
  for (int i = 0; i + 1 < S::kStages; ++i) order(i);
  WeightSums sums{}, part{};
  int stage = 0;
  uint32_t parity = 0;
  for (int64_t step = blockIdx.x; step < plan.steps; step += gridDim.x) {
    __syncthreads();  // everybody is done with the stage before
    order(stage == 0 ? S::kStages - 1 : stage - 1);
    device::barrier_wait(device::shared_address(&copied[stage]), parity);
    const StageHead head = heads[stage];
    LanePlaces at;
    at.y = g * S::kYPitch + first + static_cast<int>((head.y + y_behind) % S::kGranule);
    at.left = head.left - first;
    at.x_width = plan.source_width;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const bool exists =
          static_cast<unsigned>(head.row + plan.first_row + tap_row[n]) < static_cast<unsigned>(plan.source_rows);
      const int row = exists ? row_at[n] : (S::kZerosAt - stage * S::kBytes) / int{sizeof(T)};
      at.x[n] = row + tap_column[n] + first + static_cast<int>((head.x + behind[n]) % S::kGranule);
      at.x_column[n] = head.column + plan.first_column + tap_column[n] + first;
    }
    const T* const own = reinterpret_cast<const T*>(shared + stage * S::kBytes);
    // Whether a row of one of the operands begins or ends in the stage.
    const int begin = head.column + plan.first_column;
    const bool edge = head.left < S::kStep || begin < 0 || begin + S::kStep + plan.reach > plan.source_width;
    if (!edge) {
      multiply_runs<T, Split, false>(part, own, at);
    } else if (warp * S::kShare < head.left) {
      multiply_runs<T, Split, true>(part, own, at);
    } else if (sizeof(T) == 4) {
      small_groups::clear(part);
    }
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
    }
    // The tensor core rounds its sums toward zero: not too many of them.
    if (sizeof(T) == 4 || stage == 0 || step + gridDim.x >= plan.steps) {
      small_groups::promote(sums, part);
      small_groups::clear(part);
    }
  }
  store_sums(plan, arguments, sums, reinterpret_cast<float*>(shared), warp, lane);
}

}  // namespace halo::cuda::conv::few_sources
