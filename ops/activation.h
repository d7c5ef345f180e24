// Activations that kernels can fuse into their epilogue.
#pragma once

#include <cstdint>

namespace halo {

enum class ActivationKind : uint8_t { None, Relu, LeakyRelu, Gelu, GeluTanh, Silu };

/// An activation and its parameter (`slope` of leaky_relu; unused otherwise).
struct Activation {
  ActivationKind kind = ActivationKind::None;
  float slope = 0.01f;
  bool operator==(const Activation&) const = default;
};

}  // namespace halo
