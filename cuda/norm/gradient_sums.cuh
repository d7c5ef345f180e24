// What the gradients of a normalisation are made of.
#pragma once

#include <type_traits>

#include "../device/widen.cuh"

namespace halo::cuda {

/// Of a plane or a channel: sums of g and of g (x - mean), and of x - mean, which shows what rounding took from the
/// mean. All in float64.
struct GradientSums {
  double plain, scaled, difference;
  __device__ GradientSums operator+(const GradientSums& b) const {
    return {plain + b.plain, scaled + b.scaled, difference + b.difference};
  }
  /// Of a few neighbours, in the type that they are computed with.
  template <class T, int N>
  __device__ static GradientSums of_pack(device::Accumulator<T> mean, const Pack<T, N>& xs, const Pack<T, N>& gs) {
    using Value = device::Accumulator<T>;
    const auto x_wide = device::widen(xs), g_wide = device::widen(gs);
    Value plain = 0, scaled = 0, differences = 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const Value difference = x_wide.at[k] - mean, g = g_wide.at[k];
      plain += g;
      scaled += g * difference;
      differences += difference;
    }
    return {static_cast<double>(plain), static_cast<double>(scaled), static_cast<double>(differences)};
  }
};

/// What the gradient of x needs of its statistic: the mean in two parts, rstd, and the means of h = g weight and of
/// h (x - mean) rstd^2 (0 where statistics do not depend on x).
template <class Value>
struct Slopes {
  Value mean, rest, rstd, plain, scaled;
};

/// Of few values the gradient is what cancellation leaves: float64, which the memory's time has room for, but for half
/// types.
template <class T>
using Wide = std::conditional_t<sizeof(T) == 2, float, double>;

/// `per_element`: 1 over the values of the statistic.
template <class T, class Value>
__device__ Slopes<Wide<T>> slopes_of(const GradientSums& total, double per_element, Value mean, Value rstd) {
  using W = Wide<T>;
  const double r = static_cast<double>(rstd), rest = total.difference * per_element;
  return {static_cast<W>(mean), static_cast<W>(rest), static_cast<W>(rstd), static_cast<W>(total.plain * per_element),
          static_cast<W>((total.scaled - rest * total.plain) * r * r * per_element)};
}

/// dx = rstd (h - mean h - (x - mean) mean (h (x - mean)) rstd^2), computed in W.
template <class Value, class W = Value>
struct PlaneGradient {
  Slopes<W> s;
  W weight;
  __device__ Value operator()(Value g, Value x) const {
    return static_cast<Value>(
        s.rstd * (weight * static_cast<W>(g) - s.plain - (static_cast<W>(x) - s.mean - s.rest) * s.scaled));
  }
};

}  // namespace halo::cuda
