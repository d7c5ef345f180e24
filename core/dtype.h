// Element types. float32 and float64 are computed everywhere; bfloat16 and float16 are storage types that accumulate in
// float32; int64 is for indices, bool for masks.
#pragma once

#include <halo/core/error.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace halo {

enum class DType : uint8_t { Float32, Float64, BFloat16, Float16, Int64, Int32, UInt8, Bool };

inline constexpr DType float32 = DType::Float32;
inline constexpr DType float64 = DType::Float64;
inline constexpr DType bfloat16 = DType::BFloat16;
inline constexpr DType float16 = DType::Float16;
inline constexpr DType int64 = DType::Int64;
inline constexpr DType int32 = DType::Int32;
inline constexpr DType uint8 = DType::UInt8;
inline constexpr DType boolean = DType::Bool;

/// bfloat16 as stored: the high half of a float32. Conversion rounds to nearest even and keeps NaN.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value);
  explicit operator float() const;
};

/// IEEE half precision as stored. Conversion rounds to nearest even, keeps NaN and subnormals.
struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
};

/// "float32", "bfloat16", ...
const char* name(DType dtype);
std::size_t size_of(DType dtype);
bool is_floating_point(DType dtype);
/// bfloat16 or float16.
constexpr bool is_half(DType dtype) { return dtype == DType::BFloat16 || dtype == DType::Float16; }

/// The DType of a C++ element type.
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) {
    return DType::Float32;
  } else if constexpr (std::is_same_v<T, double>) {
    return DType::Float64;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return DType::BFloat16;
  } else if constexpr (std::is_same_v<T, Float16>) {
    return DType::Float16;
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return DType::Int64;
  } else if constexpr (std::is_same_v<T, int32_t>) {
    return DType::Int32;
  } else if constexpr (std::is_same_v<T, uint8_t>) {
    return DType::UInt8;
  } else {
    static_assert(std::is_same_v<T, bool>, "not a Halo element type");
    return DType::Bool;
  }
}

/// Calls `f(std::type_identity<T>{})` with the element type of `dtype`.
template <class F>
decltype(auto) dispatch_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::Float32: return f(std::type_identity<float>{});
    case DType::Float64: return f(std::type_identity<double>{});
    case DType::BFloat16: return f(std::type_identity<BFloat16>{});
    case DType::Float16: return f(std::type_identity<Float16>{});
    case DType::Int64: return f(std::type_identity<int64_t>{});
    case DType::Int32: return f(std::type_identity<int32_t>{});
    case DType::UInt8: return f(std::type_identity<uint8_t>{});
    case DType::Bool: return f(std::type_identity<bool>{});
  }
  fail<InternalError>("dispatch_dtype: unknown dtype");
}

/// As dispatch_dtype for the two types that everything computes in; `op` names the caller when it is another.
template <class F>
decltype(auto) dispatch_float(const char* op, DType dtype, F&& f) {
  switch (dtype) {
    case DType::Float32: return f(std::type_identity<float>{});
    case DType::Float64: return f(std::type_identity<double>{});
    default: fail(op, ": expects float32 or float64, got ", name(dtype), " (not implemented for it)");
  }
}

/// As dispatch_float, with the half types.
template <class F>
decltype(auto) dispatch_floating(const char* op, DType dtype, F&& f) {
  switch (dtype) {
    case DType::BFloat16: return f(std::type_identity<BFloat16>{});
    case DType::Float16: return f(std::type_identity<Float16>{});
    default: return dispatch_float(op, dtype, f);
  }
}

}  // namespace halo
