// Storage types on the device and the type each accumulates in.
#pragma once

#include <halo/core/dtype.h>

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace halo::cuda::device {

template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
/// The type sums of `T` are kept in: double for double, float for everything shorter.
template <class T>
using Accumulator = typename AccumulatorOf<T>::type;

/// `value` in the type arithmetic on it happens in; integers stay as they are.
template <class T>
__device__ inline T to_accumulator(T value) {
  return value;
}
__device__ inline float to_accumulator(BFloat16 value) { return __uint_as_float(uint32_t{value.bits} << 16); }
__device__ inline float to_accumulator(Float16 value) { return __half2float(__ushort_as_half(value.bits)); }

/// `value` rounded to nearest even.
template <class T, class Value>
__device__ inline T from_accumulator(Value value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    T out;
    if constexpr (std::is_same_v<T, BFloat16>) {
      out.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
    } else {
      out.bits = __half_as_ushort(__float2half_rn(value));
    }
    return out;
  }
}

/// The storage elements packed in one 32-bit word, low address first: one float or two half-width numbers.
template <class T>
__device__ inline void unpack_word(uint32_t word, float* out) {
  if constexpr (sizeof(T) == 4) {
    out[0] = __uint_as_float(word);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    out[0] = __uint_as_float(word << 16);
    out[1] = __uint_as_float(word & 0xffff0000u);
  } else {
    out[0] = __half2float(__ushort_as_half(static_cast<uint16_t>(word)));
    out[1] = __half2float(__ushort_as_half(static_cast<uint16_t>(word >> 16)));
  }
}

template <class T>
__device__ inline uint32_t pack_word(const float* in) {
  if constexpr (sizeof(T) == 4) {
    return __float_as_uint(in[0]);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(in[0], in[1]);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(in[0], in[1]);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

}  // namespace halo::cuda::device
