// The formulas of BinaryOp, for CPU loops and CUDA kernels alike.
#pragma once

#include <halo/core/error.h>
#include <halo/core/host_device.h>
#include <halo/ops/binary.h>

#include <cmath>
#include <type_traits>

namespace halo {
namespace functor {

struct Add {
  template <class T>
  HALO_HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
};
struct Sub {
  template <class T>
  HALO_HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a - b);
  }
};
struct Mul {
  template <class T>
  HALO_HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(a * b);
  }
};
struct Div {
  template <class T>
  HALO_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == T(0)) return T(0);
      // The smallest integer over -1 overflows; it wraps to itself.
      if constexpr (std::is_signed_v<T>) {
        if (b == T(-1)) return static_cast<T>(std::make_unsigned_t<T>(0) - static_cast<std::make_unsigned_t<T>>(a));
      }
    }
    return static_cast<T>(a / b);
  }
};
struct Pow {
  template <class T>
  HALO_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(std::pow(static_cast<double>(a), static_cast<double>(b)));
    } else {
      return std::pow(a, b);
    }
  }
};
struct Maximum {
  template <class T>
  HALO_HOST_DEVICE T operator()(T a, T b) const {
    return a != a || a > b ? a : b;
  }
};
struct Minimum {
  template <class T>
  HALO_HOST_DEVICE T operator()(T a, T b) const {
    return a != a || a < b ? a : b;
  }
};
struct Equal {
  template <class T>
  HALO_HOST_DEVICE bool operator()(T a, T b) const {
    return a == b;
  }
};
struct NotEqual {
  template <class T>
  HALO_HOST_DEVICE bool operator()(T a, T b) const {
    return a != b;
  }
};
struct Less {
  template <class T>
  HALO_HOST_DEVICE bool operator()(T a, T b) const {
    return a < b;
  }
};
struct LessEqual {
  template <class T>
  HALO_HOST_DEVICE bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct Greater {
  template <class T>
  HALO_HOST_DEVICE bool operator()(T a, T b) const {
    return a > b;
  }
};
struct GreaterEqual {
  template <class T>
  HALO_HOST_DEVICE bool operator()(T a, T b) const {
    return a >= b;
  }
};
struct And {
  template <class T>
  HALO_HOST_DEVICE bool operator()(T a, T b) const {
    return a != T(0) && b != T(0);
  }
};
struct Or {
  template <class T>
  HALO_HOST_DEVICE bool operator()(T a, T b) const {
    return a != T(0) || b != T(0);
  }
};

}  // namespace functor

/// Calls `f` with the functor of an arithmetic op.
template <class F>
decltype(auto) dispatch_arithmetic(BinaryOp op, F&& f) {
  switch (op) {
    case BinaryOp::Add: return f(functor::Add{});
    case BinaryOp::Sub: return f(functor::Sub{});
    case BinaryOp::Mul: return f(functor::Mul{});
    case BinaryOp::Div: return f(functor::Div{});
    case BinaryOp::Pow: return f(functor::Pow{});
    case BinaryOp::Maximum: return f(functor::Maximum{});
    case BinaryOp::Minimum: return f(functor::Minimum{});
    default: fail<InternalError>("dispatch_arithmetic: not an arithmetic op");
  }
}

/// Calls `f` with the functor of a comparison.
template <class F>
decltype(auto) dispatch_comparison(BinaryOp op, F&& f) {
  switch (op) {
    case BinaryOp::Equal: return f(functor::Equal{});
    case BinaryOp::NotEqual: return f(functor::NotEqual{});
    case BinaryOp::Less: return f(functor::Less{});
    case BinaryOp::LessEqual: return f(functor::LessEqual{});
    case BinaryOp::Greater: return f(functor::Greater{});
    case BinaryOp::GreaterEqual: return f(functor::GreaterEqual{});
    case BinaryOp::And: return f(functor::And{});
    case BinaryOp::Or: return f(functor::Or{});
    default: fail<InternalError>("dispatch_comparison: not a comparison");
  }
}

/// Calls `f(std::type_identity<T>{})` for the dtypes that have arithmetic of their own (not the half types).
template <class F>
decltype(auto) dispatch_arithmetic_dtype(const char* op, DType dtype, F&& f) {
  switch (dtype) {
    case DType::Float32: return f(std::type_identity<float>{});
    case DType::Float64: return f(std::type_identity<double>{});
    case DType::Int64: return f(std::type_identity<int64_t>{});
    case DType::Int32: return f(std::type_identity<int32_t>{});
    case DType::UInt8: return f(std::type_identity<uint8_t>{});
    case DType::Bool: return f(std::type_identity<bool>{});
    default: fail(op, ": not implemented for ", name(dtype), "; convert to float32 first");
  }
}

}  // namespace halo
