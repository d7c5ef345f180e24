// What the sums of exponentials are made of.
#pragma once

#include <halo/ops/binary_functors.h>

#include "number.cuh"
#include "quick.cuh"
#include "teams.cuh"

namespace halo::cuda::device {

/// The larger, or NaN where one is.
__device__ __forceinline__ float maximum(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
/// The smaller, or NaN where one is.
__device__ __forceinline__ float minimum(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
}
__device__ __forceinline__ double maximum(double a, double b) { return functor::Maximum{}(a, b); }
/// Of two words of two numbers of half types.
template <class T>
__device__ __forceinline__ uint32_t maximum_of_halves(uint32_t a, uint32_t b) {
  uint32_t larger;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  }
  return larger;
}
struct Maximum {
  template <class Value>
  __device__ Value operator()(Value a, Value b) const {
    return maximum(a, b);
  }
};

inline constexpr float kLog2OfE = 1.44269504f;

/// exp(x - shift), of which float32 keeps a relative error of (|x - shift| + 2) units; below 2^-126 it is 0.
__device__ __forceinline__ float exp_of_difference(float x, float shift) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"((x - shift) * kLog2OfE));
  return power;
}
__device__ __forceinline__ double exp_of_difference(double x, double shift) { return exp(x - shift); }

/// A sum of exponentials relative to the largest of them: sum * exp(largest).
template <class Value>
struct ExponentialSum {
  Value largest = -static_cast<Value>(INFINITY), sum = 0;

  /// Where all are -inf the sum is 0, without inf - inf; +inf makes NaN.
  __device__ ExponentialSum operator()(const ExponentialSum& a, const ExponentialSum& b) const {
    const Value top = maximum(a.largest, b.largest), shift = top == -static_cast<Value>(INFINITY) ? Value(0) : top;
    return {top, a.sum * exp_of_difference(a.largest, shift) + b.sum * exp_of_difference(b.largest, shift)};
  }
};

/// The largest of the thread's elements of a held row, -inf where it has none.
template <class Row>
__device__ __forceinline__ auto own_maximum(const Row& row, const typename Row::Values& values) {
  using T = typename Row::Element;
  using Value = typename Row::Value;
  Value top[2] = {-static_cast<Value>(INFINITY), -static_cast<Value>(INFINITY)};  // two that do not wait for each other
  if constexpr (sizeof(T) == 2 && Row::kPacked) {
    const uint32_t none = pack_word<T>(top);
    uint32_t pairs[2] = {none, none};
#pragma unroll
    for (int w = 0; w < Row::kElements / 2; ++w) {
      const uint32_t word = values.raw.at[2 * w / Row::kSize].at[w % (Row::kSize / 2)];
      if (row.holds(2 * w)) pairs[w % 2] = maximum_of_halves<T>(pairs[w % 2], word);
    }
    unpack_word<T>(maximum_of_halves<T>(pairs[0], pairs[1]), top);
  } else {
#pragma unroll
    for (int e = 0; e < Row::kElements; ++e) {
      if (row.holds(e)) top[e % 2] = maximum(top[e % 2], values.at[e]);
    }
  }
  return maximum(top[0], top[1]);
}

/// That of a row (device/team_row.cuh): from registers in two passes, from memory in one. `shared`: memory for a value
/// a thread.
template <class Row>
__device__ __forceinline__ auto sum_exponentials(const Row& row, const typename Row::Values& values,
                                                 ExponentialSum<typename Row::Value>* shared) {
  using Value = typename Row::Value;
  ExponentialSum<Value> total;
  if constexpr (Row::kHeld) {
    auto* const numbers = reinterpret_cast<Value*>(shared);
    Value sum[2] = {};
    total.largest = row.combine(own_maximum(row, values), numbers, Maximum{});
    const Value shift = total.largest == -static_cast<Value>(INFINITY) ? Value(0) : total.largest;
    const auto add_all = [&](const auto& power) {
#pragma unroll
      for (int e = 0; e < Row::kElements; ++e) {
        if (row.holds(e)) sum[e % 2] += power(values.at[e]);
      }
    };
    Value scale = 1;
    bool done = false;
    if constexpr (sizeof(typename Row::Element) == 2) {
      // exp2(x log2(e) - c), one instruction less: what rounding took from c is the same for all.
      if (const float c = shift * kLog2OfE; fabsf(c) < 0x1p24f) {  // so that this is at most half of one
        add_all([&](float value) { return quick_exp2(fmaf(value, kLog2OfE, -c)); });
        scale = quick_exp2(-fmaf(shift, kLog2OfE, -c));
        done = true;
      }
    }
    if (!done) add_all([&](Value value) { return exp_of_difference(value, shift); });
    total.sum = row.combine(sum[0] + sum[1], numbers, functor::Add{}) * scale;
    return total;
  } else {
    row.each([&](int64_t, Value value) { total = total(total, {value, 1}); }, values);
    return row.combine(total, shared, ExponentialSum<Value>{});
  }
}

}  // namespace halo::cuda::device

template <>
inline constexpr bool halo::cuda::kCommutes<halo::cuda::device::Maximum> = true;
