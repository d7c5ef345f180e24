// Functions by the special-function unit, exact enough for results of half types.
#pragma once

namespace halo::cuda::device {

__device__ __forceinline__ float quick_exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
__device__ __forceinline__ float quick_log(float x) {
  float log2;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log2) : "f"(x));
  return log2 * 0.693147181f;
}
/// 0 for what is beyond float32, and without the scaling of numbers near that as a division by __fdividef has it.
__device__ __forceinline__ float quick_reciprocal(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}
__device__ __forceinline__ float quick_sigmoid(float x) { return quick_reciprocal(1 + quick_exp2(-1.44269504f * x)); }

}  // namespace halo::cuda::device
