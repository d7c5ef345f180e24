// Mean and variance in one pass, without cancellation.
#pragma once

#include <cfloat>
#include <cstdint>

#include "../device/widen.cuh"

namespace halo::cuda {

/// Sums of the differences to one of the values: what is lost is relative to the spread, not to the mean.
struct Moments {
  double shift, sum, squares;  ///< squares: of the differences

  __device__ static Moments around(double value) { return {value, 0, 0}; }
  __device__ void add(double value) {
    const double difference = value - shift;
    sum += difference;
    squares += difference * difference;
  }
  /// The first `count` of a few packs, in float32, as differences to their first number, so that what sums lose is
  /// relative to their spread.
  template <class T, int N, int M>
  __device__ void add_packs(int count, const Pack<T, N> (&packs)[M]) {
    const float first = device::to_accumulator(packs[0].at[0]);
    float differences[2] = {}, powers[2] = {};
#pragma unroll
    for (int u = 0; u < M; ++u) {
      if (u >= count) break;
      const auto wide = device::widen(packs[u]);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float difference = wide.at[k] - first;
        differences[k % 2] += difference;
        powers[k % 2] = fmaf(difference, difference, powers[k % 2]);
      }
    }
    if (count <= 0) return;
    const float power = powers[0] + powers[1];
    if (!(power <= FLT_MAX)) {  // beyond float32, where their mean may not be
#pragma unroll
      for (int u = 0; u < M; ++u) {
        if (u >= count) break;
#pragma unroll
        for (int k = 0; k < N; ++k) add(static_cast<double>(device::to_accumulator(packs[u].at[k])));
      }
      return;
    }
    const double apart = static_cast<double>(first) - shift;
    const auto plain = static_cast<double>(differences[0] + differences[1]);
    const double all = plain + static_cast<double>(N * count) * apart;
    sum += all;
    squares += static_cast<double>(power) + apart * (plain + all);
  }
  __device__ double mean(double count) const { return shift + sum / count; }
  /// Sum of the squared differences to the mean.
  __device__ double deviation(double count) const {
    const double result = squares - sum * sum / count;
    return result < 0 ? 0 : result;  // keeps NaN
  }
  /// Both together; they have the same shift.
  __device__ static Moments combine(const Moments& a, const Moments& b) {
    return {a.shift, a.sum + b.sum, a.squares + b.squares};
  }
};

}  // namespace halo::cuda
