// The second stage of every split weight gradient: partial sums added in a fixed order, in float64.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <cstdint>

#include "../device/number.cuh"
#include "../launch.h"
#include "sizes.cuh"

namespace halo::cuda::conv {

inline constexpr int kOrderedSumThreads = 128;

/// The sum of `value` over the warp, the same in every lane and every run.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

/// w[i] = sum over s of partials[i * splits + s]. One warp a weight.
///
/// Tiles hold positions that no window reads, with a gradient of zero, and operands split in two: an infinity there
/// makes a NaN that plain sums do not have. A sum that is not finite is therefore computed again from the operands.
template <class T>
__global__ void __launch_bounds__(kOrderedSumThreads)
    ordered_sum_kernel(const __grid_constant__ Sizes p, const double* partials, int splits, const T* x, const T* y,
                       T* w) {
  const int64_t index = (int64_t{blockIdx.x} * kOrderedSumThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (index >= p.out_channels * p.in_per_group * p.taps) return;
  double sum = 0;
  for (int s = lane; s < splits; s += 32) sum += partials[index * splits + s];
  sum = warp_sum(sum);
  if (!(fabs(sum) < INFINITY)) {
    const Position tap = unflatten(index % p.taps, p.kernel);
    const int64_t row = index / p.taps;
    const int64_t out_channel = row / p.in_per_group;
    const int64_t in_channel = out_channel / p.out_per_group * p.in_per_group + row % p.in_per_group;
    sum = 0;
    for (int64_t at = lane; at < p.batch * p.output_positions; at += 32) {
      const int64_t batch = at / p.output_positions;
      const int64_t to = at % p.output_positions;
      const int64_t from = p.input_at(unflatten(to, p.output), tap);
      if (from < 0) continue;
      const double gradient =
          device::to_accumulator(y[(batch * p.out_channels + out_channel) * p.output_positions + to]);
      const double value = device::to_accumulator(x[(batch * p.in_channels + in_channel) * p.input_positions + from]);
      sum = fma(value, gradient, sum);
    }
    sum = warp_sum(sum);
  }
  if (lane == 0) w[index] = device::from_accumulator<T>(static_cast<device::Accumulator<T>>(sum));
}

/// Finishes the weight gradient of `problem`: x, y and w of `operands` are T, its workspace the partial sums.
template <class T>
void ordered_sum(const ConvProblem& problem, const Operands& operands, int splits, cudaStream_t stream) {
  constexpr int64_t kOutputs = kOrderedSumThreads / 32;
  launch("conv ordered sum", ordered_sum_kernel<T>,
         dim3(static_cast<unsigned>((problem.w_numel() + kOutputs - 1) / kOutputs)), dim3(kOrderedSumThreads), 0,
         stream, Sizes(problem), static_cast<const double*>(operands.workspace), splits,
         static_cast<const T*>(operands.x), static_cast<const T*>(operands.y), static_cast<T*>(operands.w));
}

}  // namespace halo::cuda::conv
