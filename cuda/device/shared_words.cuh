// Reads and writes of shared memory at 32-bit addresses, as barriers and the copy engine name it.
#pragma once

#include <cstdint>

#include "number.cuh"

namespace halo::cuda::device {

__device__ __forceinline__ float load_shared(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ uint32_t load_shared_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address));
  return word;
}
/// One element of storage type T.
template <class T>
__device__ __forceinline__ float load_shared_element(uint32_t address) {
  if constexpr (sizeof(T) == 4) {
    return load_shared(address);
  } else {
    T value;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value.bits) : "r"(address));
    return to_accumulator(value);
  }
}
__device__ __forceinline__ int2 load_shared_pair(uint32_t address) {
  int2 value;
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address));
  return value;
}
__device__ __forceinline__ float4 load_shared_vector(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address));
  return value;
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
/// The low half of a word.
__device__ __forceinline__ void store_shared_half(uint32_t address, uint32_t value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

}  // namespace halo::cuda::device
