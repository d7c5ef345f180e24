// Scalar formulas that CPU loops and CUDA kernels share: one formula, one place. Functors, so that a kernel can be
// instantiated with one.
#pragma once

#include <halo/core/host_device.h>
#include <halo/ops/activation.h>

#include <cmath>

namespace halo::math {

/// max(x, 0) that keeps NaN.
template <class T>
HALO_HOST_DEVICE T relu(T x) {
  return x < T(0) ? T(0) : x;
}

template <class T>
HALO_HOST_DEVICE T leaky_relu(T x, T slope) {
  return x < T(0) ? x * slope : x;
}

template <class T>
HALO_HOST_DEVICE T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

template <class T>
HALO_HOST_DEVICE T silu(T x) {
  return x / (T(1) + std::exp(-x));
}

/// x Phi(x), the exact form.
template <class T>
HALO_HOST_DEVICE T gelu(T x) {
  return T(0.5) * x * (T(1) + std::erf(x * T(0.70710678118654752440)));
}

/// The tanh approximation: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
template <class T>
HALO_HOST_DEVICE T gelu_tanh(T x) {
  const T inner = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
  return T(0.5) * x * (T(1) + std::tanh(inner));
}

/// The fused epilogue.
template <class T>
HALO_HOST_DEVICE T activate(const Activation& activation, T x) {
  switch (activation.kind) {
    case ActivationKind::None: return x;
    case ActivationKind::Relu: return relu(x);
    case ActivationKind::LeakyRelu: return leaky_relu(x, static_cast<T>(activation.slope));
    case ActivationKind::Gelu: return gelu(x);
    case ActivationKind::GeluTanh: return gelu_tanh(x);
    case ActivationKind::Silu: return silu(x);
  }
  return x;
}

}  // namespace halo::math
