// A float32 as the sum of two TF32 numbers: high (ten mantissa bits, rounded to nearest) and low (the rest). With
// a = ah + al and b = bh + bl, al*bh + ah*bl + ah*bh equals a*b to about 2^-22.
#pragma once

#include <cstdint>

namespace halo::cuda::device {

inline constexpr uint32_t kTf32Mask = 0xffffe000u;
inline constexpr uint32_t kTf32HalfUlp = 0x00001000u;
inline constexpr float kTf32Max = 3.40116213421e38f;  // 0x7f7fe000: anything above rounds up to infinity

struct Tf32Pair {
  uint32_t high;
  uint32_t low;
};

/// Nearest TF32, ties away from zero. Infinity and NaN stay what they are; above kTf32Max becomes infinite.
__device__ __forceinline__ uint32_t round_tf32(float x) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}

/// As round_tf32, but finite stays finite: above kTf32Max the value is cut down to it.
__device__ __forceinline__ uint32_t round_tf32_finite(float x) {
  const uint32_t bits = __float_as_uint(x);
  return fabsf(x) < kTf32Max ? round_tf32(x) : (fabsf(x) < INFINITY ? bits & kTf32Mask : bits);
}

/// The split that plain float32 semantics survive: finite values up to FLT_MAX have finite parts, and of an infinity
/// the high part is +-1 and the low part the infinity, so that low*high is the infinity that float32 gives and no
/// product of parts has the opposite sign. NaN has a NaN low part.
__device__ __forceinline__ Tf32Pair split_tf32(float x) {
  const uint32_t bits = __float_as_uint(x);
  uint32_t high = (bits + kTf32HalfUlp) & kTf32Mask;
  if (!(fabsf(x) < kTf32Max)) high = fabsf(x) < INFINITY ? bits & kTf32Mask : (bits & 0x80000000u) | 0x3f800000u;
  return {high, round_tf32(x - __uint_as_float(high))};
}

/// The cheapest split: three instructions, the tensor core itself cuts the low part to ten bits (as accurate to 2^-22).
/// A magnitude above kTf32Max, an infinity or a NaN makes every product with it infinite or NaN: who uses this must
/// look at the results and compute those that are not finite in another way. The high part alone would not do: the NaN
/// that a GPU computes, 0x7fffffff, wraps to a zero in it.
__device__ __forceinline__ Tf32Pair split_tf32_unguarded(float x) {
  const uint32_t high = (__float_as_uint(x) + kTf32HalfUlp) & kTf32Mask;
  return {high, __float_as_uint(x - __uint_as_float(high))};
}

/// A number that the tensor core cuts to a TF32 neighbour of x: one multiplication adds a third to two thirds of the
/// last kept place, depending on the mantissa, before the cut. The error is 5 % above rounding to nearest; exact TF32
/// numbers, infinity and NaN stay. Above kTf32Max the result may be infinite.
__device__ __forceinline__ uint32_t round_tf32_by_cut(float x) {
  constexpr float kScale = 1.0f + 2.0f / 3.0f / 2048.0f;
  return __float_as_uint(x * kScale);
}

}  // namespace halo::cuda::device
