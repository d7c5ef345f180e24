// Numbers that are not finite, and what a test says of them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace halo::cuda {

/// The NaN that a GPU computes. Rounding by an integer addition wraps it to a zero: TF32 weight gradients lost it so.
constexpr float kGpuNan = std::bit_cast<float>(uint32_t{0x7fffffff});

/// Whether both are finite, both NaN or both the same infinity.
inline bool same_kind(double a, double b) {
  return std::isfinite(b) ? std::isfinite(a) : std::isnan(b) ? std::isnan(a) : a == b;
}

}  // namespace halo::cuda
