// backward_weight of half types under one tap without stride, from rows of any length and alignment.
//
// A block owns as much as that of weight.cuh; its steps are 256 positions of one row. Rows lie in shared
// memory as they do in memory, from the 16 bytes on in which they begin: some warps have the copy engine bring them,
// the others multiply. Such a warp has 32 times 32 channels and every second run of 32 positions, a lane eight
// neighbours of those: they are 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of the depth of two products. Sums do not mind, as
// both operands have the same order.
#include "../../launch.h"
#include "../granule_rows.cuh"
#include "../stage_ring.cuh"
#include "weight.cuh"

namespace halo::cuda::conv::straight {
namespace {

/// Eight neighbours from word Word of a granule on, and a half further where `odd`.
template <int Word>
__device__ __forceinline__ uint4 load_eight_from(const unsigned char* granule, bool odd) {
  const auto* const granules = reinterpret_cast<const uint4*>(granule);
  const uint4 first = granules[0], second = granules[1];
  const uint32_t words[] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
  const uint32_t order = odd ? 0x5432 : 0x3210;
  return {__byte_perm(words[Word], words[Word + 1], order), __byte_perm(words[Word + 1], words[Word + 2], order),
          __byte_perm(words[Word + 2], words[Word + 3], order), __byte_perm(words[Word + 3], words[Word + 4], order)};
}

inline constexpr int kPackTiles = 4;  ///< of a warp, of 8 channels, on both sides

/// Calls f with a function that loads eight neighbours `lead` bytes behind a granule. Which loads meet most banks is a
/// matter of the leads of neighbouring rows.
template <Leads kLeads, class F>
__device__ __forceinline__ void with_lead(uint32_t lead, const F& f) {
  if constexpr (kLeads == Leads::Apart) {
    f([=](const unsigned char* granule) { return load_eight(granule + lead, false); });
  } else {
    const bool odd = lead % 4 != 0;
    switch (lead / 4) {
      case 0: return f([=](const unsigned char* granule) { return load_eight_from<0>(granule, odd); });
      case 1: return f([=](const unsigned char* granule) { return load_eight_from<1>(granule, odd); });
      case 2: return f([=](const unsigned char* granule) { return load_eight_from<2>(granule, odd); });
      default: return f([=](const unsigned char* granule) { return load_eight_from<3>(granule, odd); });
    }
  }
}

using PackSums = float[kPackTiles / 2][kPackTiles][4];

/// sums += what the lane's positions of a run give. `y`, `x`: their granules, of the lane's first rows. With Edge,
/// `left` positions are in the row.
template <class T, Leads kLeads, bool Edge>
__device__ __forceinline__ void multiply_rows(PackSums& sums, const unsigned char* y, uint32_t y_lead,
                                              const unsigned char* x, uint32_t x_lead, int left) {
  const auto inside = [&](uint4 all) {
    if constexpr (Edge) {
      const auto mask = [&](int i) { return left > i + 1 ? 0xffffffffu : left > i ? 0xffffu : 0u; };
      all.x &= mask(0), all.y &= mask(2), all.z &= mask(4), all.w &= mask(6);
    }
    return all;
  };
  uint4 a[kPackTiles];
  with_lead<kLeads>(y_lead, [&](const auto& load) {
#pragma unroll
    for (int m = 0; m < kPackTiles; ++m) a[m] = inside(load(y + m * 8 * kRunPitch));
  });
  with_lead<kLeads>(x_lead, [&](const auto& load) {
#pragma unroll
    for (int n = 0; n < kPackTiles; ++n) {
      const uint4 b = inside(load(x + n * 8 * kRunPitch));
#pragma unroll
      for (int m = 0; m < kPackTiles; m += 2) {
        device::multiply_halves<T>(sums[m / 2][n], {a[m].x, a[m + 1].x, a[m].y, a[m + 1].y}, {b.x, b.y});
        device::multiply_halves<T>(sums[m / 2][n], {a[m].z, a[m + 1].z, a[m].w, a[m + 1].w}, {b.z, b.w});
      }
    }
  });
}

/// What all warps know of a step.
struct RunHead {
  int left;       ///< positions to the end of the row, none where x has no such row
  uint32_t x, y;  ///< where the first rows begin, bytes modulo 2^32
};

/// By a copying warp: its rows of all steps of the block, 32 of y and 16 of x.
template <class T>
__device__ __forceinline__ void copy_runs(const WeightBlock<T, true>& block, unsigned char* shared, RunHead* heads,
                                          Ring ring, int warp, int lane) {
  using Block = WeightBlock<T, true>;
  const WeightPlan& plan = block.plan;
  const small_groups::GroupProblem& p = plan.problem;
  const T *const x_begin = block.arguments.x, *const y_begin = block.arguments.y;
  const int y_row = warp * 32 + lane, x_row = warp * 16 + lane;
  const bool y_exists = block.row + y_row < p.result_channels;
  const bool x_exists = lane < 16 && block.channel + x_row < p.source_channels;
  for (int64_t index = blockIdx.x; index < plan.steps; index += gridDim.x, ring.advance()) {
    const typename Block::Step s = block.step_of(index);
    bool exists;
    const T* const x = x_begin + block.first_of(s, 0, exists);
    const T* const y = y_begin + block.first_of_y(s, 0);
    const int left = exists ? p.result[2] - s.q : 0;
    const uint32_t bytes = static_cast<uint32_t>(min(kRunPositions, left)) * uint32_t{sizeof(T)};
    const uint32_t to = device::shared_address(shared) + static_cast<uint32_t>(ring.slot() * plan.stage_bytes);
    ring.wait_released();
    if (warp == 0 && lane == 0)
      heads[ring.slot()] = {left, static_cast<uint32_t>(reinterpret_cast<uintptr_t>(x)),
                            static_cast<uint32_t>(reinterpret_cast<uintptr_t>(y))};
    start_runs(ring.copied(), y + y_row * p.result_rows.plane_pitch, y_exists ? bytes : 0,
               to + static_cast<uint32_t>(y_row * kRunPitch), y_begin, y_begin + p.result_rows.elements, lane);
    start_runs(ring.copied(), x + x_row * p.source_rows.plane_pitch, x_exists ? bytes : 0,
               to + static_cast<uint32_t>((Block::kRows + x_row) * kRunPitch), x_begin,
               x_begin + p.source_rows.elements, lane);
  }
}

template <class T, Leads kLeads>
__global__ void __launch_bounds__(kRunThreads, 1)
    weight_runs_kernel(const __grid_constant__ WeightPlan plan, const __grid_constant__ WeightArguments<T> arguments) {
  using Block = WeightBlock<T, true>;
  static_assert(Block::kRows == kRunCopiers * 32 && Block::kColumns == kRunCopiers * 16);
  static_assert(kRunMakers * kRunMakerRegisters + kRunCopiers * kRunCopierRegisters <= 96 * (kRunMakers + kRunCopiers));
  constexpr int kSums = sizeof(PackSums) / sizeof(float);
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ RunHead heads[kRunStages];
  __shared__ Ring::Barriers barriers;
  const small_groups::GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int t = lane % 4, g = lane / 4;
  const Block block(plan, arguments);
  Ring ring(barriers, kRunStages);
  if (threadIdx.x == 0) ring.init(kRunMakers, 2 * kRunCopiers);
  __syncthreads();
  if (warp >= kRunMakers) {
    device::registers_decrease<kRunCopierRegisters>();
    copy_runs(block, shared, heads, ring, warp - kRunMakers, lane);
    return;
  }
  device::registers_increase<kRunMakerRegisters>();
  const int split = warp % kRunSplits, warp_row = warp / kRunSplits / 2 * 32, warp_column = warp / kRunSplits % 2 * 32;
  // Rows that are eight channels apart begin alike.
  const auto x_behind = static_cast<uint32_t>(g * p.source_rows.plane_pitch) * uint32_t{sizeof(T)};
  const auto y_behind = static_cast<uint32_t>(g * p.result_rows.plane_pitch) * uint32_t{sizeof(T)};
  PackSums sums{}, totals{};
  int count = 0;
  for (int64_t index = blockIdx.x; index < plan.steps; index += gridDim.x) {
    ring.wait_copied();
    const unsigned char* const y = shared + ring.slot() * plan.stage_bytes + (warp_row + g) * kRunPitch;
    const unsigned char* const x = y + (Block::kRows - warp_row + warp_column) * kRunPitch;
    const RunHead head = heads[ring.slot()];
    const uint32_t x_lead = (head.x + x_behind) % device::kGranule, y_lead = (head.y + y_behind) % device::kGranule;
#pragma unroll 1
    for (int run = split * 32; run < min(kRunPositions, head.left); run += kRunSplits * 32) {
      const int at = (run + 8 * t) * int{sizeof(T)};
      if (run + 32 <= head.left) {
        multiply_rows<T, kLeads, false>(sums, y + at, y_lead, x + at, x_lead, 0);
      } else {
        multiply_rows<T, kLeads, true>(sums, y + at, y_lead, x + at, x_lead, head.left - run - 8 * t);
      }
    }
    ring.release(lane);
    ring.advance();
    // The tensor core rounds its sums toward zero: not too many of them.
    if (++count % kRunFlush == 0 || index + gridDim.x >= plan.steps) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        (&totals[0][0][0])[i] += (&sums[0][0][0])[i];
        (&sums[0][0][0])[i] = 0;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int row = block.row + warp_row + i / 16 * 16 + i % 4 / 2 * 8 + g;
    const int channel = block.channel + warp_column + i / 4 % 4 * 8 + 2 * t + i % 2;
    if (row < p.result_channels && channel < p.source_channels)
      block.store(row, channel, 0, (&totals[0][0][0])[i], split, kRunSplits);
  }
}

}  // namespace

template <class T>
void launch_weight_runs(const WeightPlan& plan, const T* x, const T* y, double* partials, cudaStream_t stream) {
  const auto start = [&](auto kernel) {
    launch("conv straight backward_weight", kernel,
           dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.rows_of_blocks)), kRunThreads,
           plan.shared_bytes, stream, plan, WeightArguments<T>{x, y, partials});
  };
  plan.leads == Leads::Alike ? start(weight_runs_kernel<T, Leads::Alike>) : start(weight_runs_kernel<T, Leads::Apart>);
}

template void launch_weight_runs(const WeightPlan&, const BFloat16*, const BFloat16*, double*, cudaStream_t);
template void launch_weight_runs(const WeightPlan&, const Float16*, const Float16*, double*, cudaStream_t);

}  // namespace halo::cuda::conv::straight
