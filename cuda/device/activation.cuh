// Activations fused into epilogues.
#pragma once

#include <halo/ops/activation.h>

#include <type_traits>

namespace halo::cuda::device {

/// activation(x) in T; the branch on `kind` is uniform over a launch.
template <class T>
__device__ __forceinline__ T apply_activation(const Activation& activation, T x) {
  switch (activation.kind) {
    case ActivationKind::None: return x;
    case ActivationKind::Relu: return x > T(0) || x != x ? x : T(0);
    case ActivationKind::LeakyRelu: return x > T(0) ? x : x * T(activation.slope);
    case ActivationKind::Gelu: return T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752)));
    case ActivationKind::GeluTanh:
      return T(0.5) * x * (T(1) + tanh(T(0.79788456080286536) * (x + T(0.044715) * x * x * x)));
    case ActivationKind::Silu: return x / (T(1) + exp(-x));
  }
  return x;
}

/// The same as a call, for kernels that would otherwise hold a copy of it for each of many results.
template <class T>
__device__ __noinline__ T call_activation(Activation activation, T x) {
  return apply_activation(activation, x);
}

}  // namespace halo::cuda::device
