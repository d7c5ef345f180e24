// Mean and variance in one pass, without cancellation.
#pragma once

#include <cstdint>

namespace halo::cuda {

/// `count` values as sums of differences to one of them: what is lost is relative to the spread, not to the mean.
struct Moments {
  double count, shift, sum, squares;  ///< squares: of the differences

  __device__ static Moments of(double value) { return {1, value, 0, 0}; }
  __device__ void add(double value) {
    const double difference = value - shift;
    count += 1;
    sum += difference;
    squares += difference * difference;
  }
  __device__ double mean() const { return shift + sum / count; }
  /// Sum of the squared differences to the mean.
  __device__ double deviation() const {
    const double result = squares - sum * sum / count;
    return result < 0 ? 0 : result;  // keeps NaN
  }

  /// Both together (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983).
  __device__ static Moments combine(const Moments& a, const Moments& b) {
    const double count = a.count + b.count, mean = a.mean(), apart = b.mean() - mean;
    const double share = apart * (b.count / count);
    return {count, mean + share, 0, a.deviation() + b.deviation() + apart * share * a.count};
  }
};

}  // namespace halo::cuda
