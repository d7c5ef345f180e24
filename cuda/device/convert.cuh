// Conversion between element types, as core/copy.cpp does it on the CPU.
#pragma once

#include <halo/core/dtype.h>

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace halo::cuda::device {

/// Floating to integer truncates toward zero, anything to bool is `!= 0`, to half types rounds to nearest even.
template <class To, class From>
__device__ __forceinline__ To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, BFloat16>) {
    return convert<To>(__bfloat162float(__ushort_as_bfloat16(value.bits)));
  } else if constexpr (std::is_same_v<From, Float16>) {
    return convert<To>(__half2float(__ushort_as_half(value.bits)));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    BFloat16 result;
    result.bits = __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(value)));
    return result;
  } else if constexpr (std::is_same_v<To, Float16>) {
    Float16 result;
    result.bits = __half_as_ushort(__float2half_rn(static_cast<float>(value)));
    return result;
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace halo::cuda::device
