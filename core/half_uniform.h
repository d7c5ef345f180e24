// Uniform numbers of half types, on CPU and GPU: two for each 32 bits of a Philox block.
#pragma once

#include <halo/core/philox.h>

namespace halo {

/// Uniform in [0, 1) with 16 bits, element 0 to 7 of a block: exact in float32. Half types round it toward zero, so
/// that none is 1.
HALO_HOST_DEVICE inline float uniform16_of(const PhiloxBlock& b, int element) {
  const uint32_t bits = b.v[element / 2] >> (element % 2 * 16) & 0xffffu;
#ifdef __CUDA_ARCH__
  return __uint_as_float(0x3f800000u | bits << 7) - 1.0f;  // conversions of integers are slow
#else
  return static_cast<float>(bits) * 0x1p-16f;
#endif
}

}  // namespace halo
