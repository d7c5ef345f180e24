// Mean and variance in one pass, without cancellation.
#pragma once

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
  /// Half-precision numbers, their differences summed in float32, which rounds far less than they did.
  template <class T, int N>
  __device__ void add_halves(const Pack<T, N>& pack) {
    const auto from = static_cast<float>(shift);
    float differences = 0, powers = 0;
    const auto wide = device::widen(pack);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float difference = wide.at[k] - from;
      differences += difference;
      powers = fmaf(difference, difference, powers);
    }
    sum += static_cast<double>(differences);
    squares += static_cast<double>(powers);
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
