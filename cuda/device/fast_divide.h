// Division of 32-bit unsigned numbers by a divisor that is fixed at launch: one multiply and one shift on the device.
#pragma once

#include <cstdint>

namespace halo::cuda {

/// Exact for 0 <= n < 2^31 and 1 <= divisor < 2^31 (Granlund and Montgomery, "Division by invariant integers using
/// multiplication", 1994).
struct FastDivide {
  uint32_t divisor = 1;
  uint32_t multiplier = 0;
  uint32_t shift = 0;

  FastDivide() = default;
  explicit FastDivide(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<uint32_t>(((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d)) / d + 1);
  }

#ifdef __CUDACC__
  __host__ __device__ __forceinline__ uint32_t divide(uint32_t n) const {
#ifdef __CUDA_ARCH__
    return (__umulhi(n, multiplier) + n) >> shift;
#else
    return n / divisor;
#endif
  }
  /// Quotient; `remainder` by reference.
  __host__ __device__ __forceinline__ uint32_t divide(uint32_t n, uint32_t& remainder) const {
    const uint32_t quotient = divide(n);
    remainder = n - quotient * divisor;
    return quotient;
  }
#endif
};

}  // namespace halo::cuda
