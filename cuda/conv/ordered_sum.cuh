// The second stage of every split weight gradient: partial sums added in a fixed order, in float64.
#pragma once

#include <halo/cuda/conv/algorithm.h>
#include <halo/ops/binary_functors.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "../device/grid_order.cuh"
#include "../device/number.cuh"
#include "../device/teams.cuh"
#include "../launch.h"
#include "sizes.cuh"

namespace halo::cuda::conv {

/// The sum of `value` over the warp, the same in every lane and every run.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

/// Calls f(i, sum of values[i] over the warp) in one lane for each i. Each step leaves a lane half of the values, so
/// that N sums take about N shuffles.
template <int Distance = 16, int N, class F>
__device__ __forceinline__ void for_each_warp_sum(const float (&values)[N], const F& f) {
  if constexpr (Distance == 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) f(i, values[i]);
  } else {
    constexpr int kHalf = (N + 1) / 2;
    const bool upper = threadIdx.x % (2 * Distance) >= Distance;
    float sums[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float low = values[i], high = i + kHalf < N ? values[i + kHalf] : 0;
      sums[i] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, upper ? low : high, Distance);
    }
    for_each_warp_sum<Distance / 2>(sums, [&](int i, float sum) {
      const int index = upper ? i + kHalf : i;
      if (index < N) f(index, sum);
    });
  }
}

/// How a kernel leaves its partial sums: [weights, splits], or [splits, weights] where kSplitsFirst; and which weight
/// comes index-th.
struct WeightsInOrder {
  static constexpr bool kSplitsFirst = false;
  __device__ int64_t operator()(int64_t index) const { return index; }
};

/// This thread's share of one weight of the gradient, made from the operands themselves by a whole block.
template <class T>
__device__ double plain_weight_part(const Sizes& p, const T* x, const T* y, int64_t weight) {
  const Position tap = unflatten(weight % p.taps, p.kernel);
  const int64_t row = weight / p.taps, out_channel = row / p.in_per_group;
  const int64_t in_channel = out_channel / p.out_per_group * p.in_per_group + row % p.in_per_group;
  double sum = 0;
  for (int64_t at = threadIdx.x; at < p.batch * p.output_positions; at += Teams::kThreads) {
    const int64_t batch = at / p.output_positions, to = at % p.output_positions;
    const int64_t from = p.input_at(unflatten(to, p.output), tap);
    if (from < 0) continue;
    const double gradient = device::to_accumulator(y[(batch * p.out_channels + out_channel) * p.output_positions + to]);
    const double value = device::to_accumulator(x[(batch * p.in_channels + in_channel) * p.input_positions + from]);
    sum = fma(value, gradient, sum);
  }
  return sum;
}

/// w[order(i)] = the sum of its partial sums: a team of threads a weight.
///
/// Tiles hold positions that no window reads, with a gradient of zero, and operands split in two, which may overflow:
/// an infinity there makes a NaN that plain sums do not have. A sum that is not finite is therefore computed again from
/// the operands, by the whole block.
template <class T, class Order>
__global__ void __launch_bounds__(Teams::kThreads)
    ordered_sum_kernel(const __grid_constant__ Sizes p, const double* partials, int splits,
                       const __grid_constant__ Teams teams, const __grid_constant__ Order order, const T* x, const T* y,
                       T* w) {
  __shared__ double shared[Teams::kThreads];
  __shared__ bool again[Teams::kThreads];
  const int64_t count = p.out_channels * p.in_per_group * p.taps;
  const int64_t first = int64_t{blockIdx.x} * teams.lanes, index = first + teams.lane();
#if __CUDA_ARCH__ >= 900
  device::wait_for_previous_grid();
#endif
  double sum = 0;
  if (index < count) {
    const double* from = partials + (Order::kSplitsFirst ? index : index * splits);
#pragma unroll 4
    for (int s = teams.rank(); s < splits; s += teams.depth) sum += from[Order::kSplitsFirst ? s * count : s];
  }
  const auto value = static_cast<device::Accumulator<T>>(combine_team(teams, sum, shared, functor::Add{}));
  const bool bad = index < count && !isfinite(value);
  if (teams.rank() == 0) {
    again[teams.lane()] = bad;
    if (index < count) w[order(index)] = device::from_accumulator<T>(value);
  }
  if (!__syncthreads_or(bad)) return;
  for (int lane = 0; lane < teams.lanes; ++lane) {
    if (!again[lane]) continue;
    const int64_t weight = order(first + lane);
    const double whole = combine_team(Teams{}, plain_weight_part(p, x, y, weight), shared, functor::Add{});
    if (threadIdx.x == 0) w[weight] = device::from_accumulator<T>(static_cast<device::Accumulator<T>>(whole));
  }
}

/// Finishes the weight gradient of `problem`: x, y and w of `operands` are T, its workspace begins with the partial
/// sums. `early`: the kernel that made them calls release_next_grid.
template <class T, class Order = WeightsInOrder>
void ordered_sum(const ConvProblem& problem, const Operands& operands, int splits, cudaStream_t stream,
                 const Order& order = {}, bool early = false) {
  constexpr int kMostDepth = Order::kSplitsFirst ? 8 : 32;  // 32 neighbours in memory either way
  const int depth = std::min(kMostDepth, static_cast<int>(std::bit_floor(static_cast<unsigned>(splits))));
  const Teams teams = Teams::with_depth(static_cast<uint64_t>(depth), Order::kSplitsFirst);
  launch_with({.early = early}, "conv ordered sum", ordered_sum_kernel<T, Order>, dim3(teams.blocks(problem.w_numel())),
              dim3(Teams::kThreads), 0, stream, Sizes(problem), static_cast<const double*>(operands.workspace), splits,
              teams, order, static_cast<const T*>(operands.x), static_cast<const T*>(operands.y),
              static_cast<T*>(operands.w));
}

}  // namespace halo::cuda::conv
