// Loads from global memory that depend on a condition, without a branch.
#pragma once

#include <cstdint>

namespace halo::cuda::device {

/// One element where `exists`, else zero; no branch.
template <class T>
__device__ __forceinline__ uint32_t load_one(const void* from, bool exists) {
  uint32_t to;
  if constexpr (sizeof(T) == 4) {
    asm("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.nc.u32 %0, [%1];}"
        : "=&r"(to)
        : "l"(from), "r"(static_cast<int>(exists)));
  } else {
    asm("{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0; @p ld.global.nc.u16 %0, [%1];}"
        : "=&r"(to)
        : "l"(from), "r"(static_cast<int>(exists)));
  }
  return to;
}

/// Four elements of 4 bytes, or of 2, where they exist, else zeros. Aligned to as much.
__device__ __forceinline__ void load_four(uint32_t (&to)[4], const void* from, bool exists) {
  asm("{.reg .pred p; setp.ne.u32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0; "
      "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];}"
      : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
      : "l"(from), "r"(static_cast<int>(exists)));
}
__device__ __forceinline__ void load_four(uint32_t (&to)[2], const void* from, bool exists) {
  asm("{.reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0; @p ld.global.nc.v2.u32 {%0, %1}, [%2];}"
      : "=&r"(to[0]), "=&r"(to[1])
      : "l"(from), "r"(static_cast<int>(exists)));
}

}  // namespace halo::cuda::device
