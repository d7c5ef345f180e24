// Division of element indices by an extent.
#pragma once

#include <cstdint>

#include "fast_divide.h"

namespace halo::cuda {

/// By a fixed divisor of at least 1 (0 is taken for 1: there is nothing to divide then). Numbers below 2^31 go by
/// multiplication; whether all will be is known at launch, so the branch is the same for every thread.
struct Divide {
  int64_t divisor = 1;
  FastDivide fast;
  bool narrow = true;

  Divide() = default;
  /// For numbers below `bound`.
  Divide(int64_t by, int64_t bound) : divisor(by > 0 ? by : 1), narrow(bound <= (int64_t{1} << 31)) {
    if (divisor >= (int64_t{1} << 31)) narrow = false;
    if (narrow) fast = FastDivide(static_cast<uint32_t>(divisor));
  }

#ifdef __CUDACC__
  __device__ __forceinline__ int64_t quotient(int64_t n) const {
    return narrow ? int64_t{fast.divide(static_cast<uint32_t>(n))} : n / divisor;
  }
  /// Divides n in place and returns the remainder.
  __device__ __forceinline__ int64_t split(int64_t& n) const {
    const int64_t whole = quotient(n), rest = n - whole * divisor;
    n = whole;
    return rest;
  }
#endif
};

}  // namespace halo::cuda
