// The floating-point control register of the calling thread: rounding, and what becomes of subnormal numbers. Not
// installed.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace halo {

/// The register as it is; 0 on processors whose register is not known here.
inline uint64_t float_mode() {
#if defined(__x86_64__)
  return _mm_getcsr();
#elif defined(__aarch64__)
  uint64_t mode = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#else
  return 0;
#endif
}

inline void set_float_mode([[maybe_unused]] uint64_t mode) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(mode));
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#endif
}

/// The bits that make subnormal operands and results 0 (x86-64: DAZ and FTZ; AArch64: FZ).
#if defined(__x86_64__)
inline constexpr uint64_t kFlushBits = 0x8040;
#elif defined(__aarch64__)
inline constexpr uint64_t kFlushBits = uint64_t{1} << 24;
#else
inline constexpr uint64_t kFlushBits = 0;
#endif

}  // namespace halo
