// Philox 4x32-10: the counter-based generator behind all random numbers. Element i of a random tensor depends on (seed,
// offset, i) alone, so CPU and GPU, and any number of threads, draw the same values.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <halo/core/host_device.h>

#include <cmath>
#include <cstdint>

namespace halo {

/// Where a draw starts: key and counter.
struct PhiloxState {
  uint64_t seed = 0;
  uint64_t offset = 0;  ///< in blocks of four 32-bit numbers
};

struct PhiloxBlock {
  uint32_t v[4];
};

namespace detail {

/// Both halves of a product. (On the GPU a shift of the 64-bit product costs an addition besides.)
HALO_HOST_DEVICE inline void multiply(uint32_t a, uint32_t b, uint32_t& high, uint32_t& low) {
#ifdef __CUDA_ARCH__
  asm("{ .reg .u64 product; mul.wide.u32 product, %2, %3; mov.b64 {%0, %1}, product; }"
      : "=r"(low), "=r"(high)
      : "r"(a), "r"(b));
#else
  const uint64_t product = uint64_t{a} * b;
  high = static_cast<uint32_t>(product >> 32);
  low = static_cast<uint32_t>(product);
#endif
}

}  // namespace detail

/// Block `index` after `state`.
HALO_HOST_DEVICE inline PhiloxBlock philox(PhiloxState state, uint64_t index) {
  const uint64_t counter = state.offset + index;
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(state.seed), k1 = static_cast<uint32_t>(state.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    uint32_t high0, high2, low0, low2;
    detail::multiply(0xD2511F53u, c0, high0, low0);
    detail::multiply(0xCD9E8D57u, c2, high2, low2);
    c0 = high2 ^ c1 ^ k0;
    c2 = high0 ^ c3 ^ k1;
    c1 = low2;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Element `i` as 32 random bits.
HALO_HOST_DEVICE inline uint32_t random_bits(PhiloxState state, uint64_t i) { return philox(state, i / 4).v[i % 4]; }

/// Element `i` as 64 random bits (two elements a block).
HALO_HOST_DEVICE inline uint64_t random_bits64(PhiloxState state, uint64_t i) {
  const PhiloxBlock b = philox(state, i / 2);
  const int k = static_cast<int>(i % 2) * 2;
  return (static_cast<uint64_t>(b.v[k + 1]) << 32) | b.v[k];
}

/// Uniform in [0, 1) from the upper 24 bits: every value is exact in float32.
HALO_HOST_DEVICE inline float uniform_of(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }
HALO_HOST_DEVICE inline float random_uniform(PhiloxState state, uint64_t i) {
  return uniform_of(random_bits(state, i));
}

/// Uniform in [0, 1) with 53 bits: pair 0 or 1 of a block.
HALO_HOST_DEVICE inline double uniform64_of(const PhiloxBlock& b, int pair) {
  return static_cast<double>(((static_cast<uint64_t>(b.v[2 * pair + 1]) << 32) | b.v[2 * pair]) >> 11) * 0x1p-53;
}
HALO_HOST_DEVICE inline double random_uniform64(PhiloxState state, uint64_t i) {
  return uniform64_of(philox(state, i / 2), static_cast<int>(i % 2));
}

/// Standard normal by Box-Muller on a block of its own, in float64, so that CPU and GPU agree to the last bit of a
/// float32 (up to 2 ulp where their logarithm or cosine differ).
HALO_HOST_DEVICE inline double normal_of(const PhiloxBlock& b) {
  const uint64_t r = (static_cast<uint64_t>(b.v[1]) << 32) | b.v[0], a = (static_cast<uint64_t>(b.v[3]) << 32) | b.v[2];
  const double u = (static_cast<double>(r >> 11) + 1.0) * 0x1p-53;  // (0, 1]
  const double angle = static_cast<double>(a >> 11) * 0x1p-53 * 6.283185307179586477;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(angle);
}
HALO_HOST_DEVICE inline double random_normal(PhiloxState state, uint64_t i) { return normal_of(philox(state, i)); }

}  // namespace halo
