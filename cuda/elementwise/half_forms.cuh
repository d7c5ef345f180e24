// Activations of half types by the special-function unit: their error, 2e-7, is far below what rounding the result to
// bfloat16 or float16 loses, and the full float32 functions would take longer than the memory does.
#pragma once

#include <halo/ops/unary_functors.h>

#include "../device/quick.cuh"

namespace halo::cuda {

/// `value` and the derivatives of F for float32 numbers that come from half types; as F itself has them unless there is
/// a quicker form below.
template <class F>
struct HalfForm {
  F f;
  __device__ float value(float x) const { return f.value(x); }
  __device__ float first(float x) const { return f.first(x); }
  __device__ float second(float x) const { return f.second(x); }
};

namespace device {

/// The normal distribution: Phi(x) and its density. Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
struct Normal {
  float below, density;
  __device__ explicit Normal(float x) {
    const float power = quick_exp2(-0.72134752f * x * x);  // exp(-x^2 / 2)
    const float t = quick_reciprocal(1 + 0.23164190f * fabsf(x));
    const float series =
        t * (0.127414796f + t * (-0.142248368f + t * (0.710706871f + t * (-0.726576013f + t * 0.530702714f))));
    const float beyond = series * power;  // of |x|
    below = x < 0 ? beyond : 1 - beyond;
    density = 0.39894228f * power;
  }
};

}  // namespace device

template <>
struct HalfForm<functor::Gelu> {
  functor::Gelu f;
  __device__ float value(float x) const { return x * device::Normal(x).below; }
  __device__ float first(float x) const {
    const device::Normal normal(x);
    return normal.below + x * normal.density;
  }
  __device__ float second(float x) const { return device::Normal(x).density * (2 - x * x); }
};

template <>
struct HalfForm<functor::Silu> {
  functor::Silu f;
  __device__ float value(float x) const { return x * device::quick_sigmoid(x); }
  __device__ float first(float x) const {
    const float s = device::quick_sigmoid(x);
    return s * (1 + x * (1 - s));
  }
  __device__ float second(float x) const {
    const float s = device::quick_sigmoid(x);
    return s * (1 - s) * (2 + x * (1 - 2 * s));
  }
};

/// F as a kernel over T computes it.
template <class F, class T>
auto form_of(F f) {
  if constexpr (sizeof(T) == 2) {
    return HalfForm<F>{f};
  } else {
    return f;
  }
}

}  // namespace halo::cuda
