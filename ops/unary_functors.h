// The one list of elementwise functions of one argument: value and derivatives, for CPU loops and CUDA kernels alike.
//
// Each functor has value(x), first(s) and second(s): the first derivative as a function of what is saved for backward
// (the input x, or the output y where `kFromOutput`), and the derivative of `first` with respect to that saved value.
// To add a function: a functor here, an enumerator and a case in dispatch_unary, and its name in autograd/unary.h.
#pragma once

#include <halo/core/error.h>
#include <halo/ops/scalar_math.h>

namespace halo {

enum class UnaryOp : uint8_t {
  Scale,
  Shift,
  Abs,
  Exp,
  Log,
  Sqrt,
  Sin,
  Cos,
  Tanh,
  Sigmoid,
  Softplus,
  Relu,
  LeakyRelu,
  Gelu,
  GeluTanh,
  Silu,
  Clamp,
  Pow,
  Reciprocal
};

/// Parameters of the functions that have any: factor, summand, exponent, slope (a); lower and upper bound (a, b).
struct UnaryParams {
  double a = 0, b = 0;
};

namespace functor {

struct Base {
  static constexpr bool kFromOutput = false;
  UnaryParams p;
};

struct Scale : Base {
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return static_cast<T>(p.a) * x;
  }
  template <class T>
  HALO_HOST_DEVICE T first(T) const {
    return static_cast<T>(p.a);
  }
  template <class T>
  HALO_HOST_DEVICE T second(T) const {
    return T(0);
  }
};
struct Shift : Base {
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return x + static_cast<T>(p.a);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T) const {
    return T(1);
  }
  template <class T>
  HALO_HOST_DEVICE T second(T) const {
    return T(0);
  }
};
struct Abs : Base {
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return x < T(0) ? -x : (x == T(0) ? T(0) : x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T x) const {
    return x > T(0) ? T(1) : (x < T(0) ? T(-1) : (x == T(0) ? T(0) : x));
  }
  template <class T>
  HALO_HOST_DEVICE T second(T) const {
    return T(0);
  }
};
struct Exp : Base {
  static constexpr bool kFromOutput = true;
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return std::exp(x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T y) const {
    return y;
  }
  template <class T>
  HALO_HOST_DEVICE T second(T) const {
    return T(1);
  }
};
struct Log : Base {
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return std::log(x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T x) const {
    return T(1) / x;
  }
  template <class T>
  HALO_HOST_DEVICE T second(T x) const {
    return T(-1) / (x * x);
  }
};
struct Sqrt : Base {
  static constexpr bool kFromOutput = true;
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return std::sqrt(x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T y) const {
    return T(0.5) / y;
  }
  template <class T>
  HALO_HOST_DEVICE T second(T y) const {
    return T(-0.5) / (y * y);
  }
};
struct Sin : Base {
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return std::sin(x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T x) const {
    return std::cos(x);
  }
  template <class T>
  HALO_HOST_DEVICE T second(T x) const {
    return -std::sin(x);
  }
};
struct Cos : Base {
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return std::cos(x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T x) const {
    return -std::sin(x);
  }
  template <class T>
  HALO_HOST_DEVICE T second(T x) const {
    return -std::cos(x);
  }
};
struct Tanh : Base {
  static constexpr bool kFromOutput = true;
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return std::tanh(x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T y) const {
    return T(1) - y * y;
  }
  template <class T>
  HALO_HOST_DEVICE T second(T y) const {
    return T(-2) * y;
  }
};
struct Sigmoid : Base {
  static constexpr bool kFromOutput = true;
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return math::sigmoid(x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T y) const {
    return y * (T(1) - y);
  }
  template <class T>
  HALO_HOST_DEVICE T second(T y) const {
    return T(1) - T(2) * y;
  }
};
/// log(1 + exp(x)), without overflow for large x.
struct Softplus : Base {
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return x > T(0) ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
  }
  template <class T>
  HALO_HOST_DEVICE T first(T x) const {
    return math::sigmoid(x);
  }
  template <class T>
  HALO_HOST_DEVICE T second(T x) const {
    const T s = math::sigmoid(x);
    return s * (T(1) - s);
  }
};
/// Gradient 0 at 0; NaN passes both ways.
struct Relu : Base {
  static constexpr bool kFromOutput = true;
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return math::relu(x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T y) const {
    return y > T(0) ? T(1) : (y == T(0) ? T(0) : y);
  }
  template <class T>
  HALO_HOST_DEVICE T second(T) const {
    return T(0);
  }
};
struct LeakyRelu : Base {
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return math::leaky_relu(x, static_cast<T>(p.a));
  }
  template <class T>
  HALO_HOST_DEVICE T first(T x) const {
    return x > T(0) ? T(1) : (x == x ? static_cast<T>(p.a) : x);
  }
  template <class T>
  HALO_HOST_DEVICE T second(T) const {
    return T(0);
  }
};
struct Gelu : Base {
  template <class T>
  HALO_HOST_DEVICE static T density(T x) {
    return T(0.39894228040143267794) * std::exp(T(-0.5) * x * x);
  }
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return math::gelu(x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T x) const {
    return T(0.5) * (T(1) + std::erf(x * T(0.70710678118654752440))) + x * density(x);
  }
  template <class T>
  HALO_HOST_DEVICE T second(T x) const {
    return density(x) * (T(2) - x * x);
  }
};
struct GeluTanh : Base {
  template <class T>
  HALO_HOST_DEVICE static T inner(T x) {
    return T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
  }
  template <class T>
  HALO_HOST_DEVICE static T slope(T x) {
    return T(0.79788456080286535588) * (T(1) + T(3 * 0.044715) * x * x);
  }
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return math::gelu_tanh(x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T x) const {
    const T t = std::tanh(inner(x));
    return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * slope(x);
  }
  template <class T>
  HALO_HOST_DEVICE T second(T x) const {
    const T t = std::tanh(inner(x)), s = slope(x), d = T(1) - t * t;
    const T bend = T(0.79788456080286535588) * T(6 * 0.044715) * x;
    return d * s + T(0.5) * x * d * (bend - T(2) * t * s * s);
  }
};
struct Silu : Base {
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return math::silu(x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T x) const {
    const T s = math::sigmoid(x);
    return s * (T(1) + x * (T(1) - s));
  }
  template <class T>
  HALO_HOST_DEVICE T second(T x) const {
    const T s = math::sigmoid(x);
    return s * (T(1) - s) * (T(2) + x * (T(1) - T(2) * s));
  }
};
/// Gradient 1 inside and on the bounds, 0 outside; NaN passes both ways.
struct Clamp : Base {
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return x < static_cast<T>(p.a) ? static_cast<T>(p.a) : (x > static_cast<T>(p.b) ? static_cast<T>(p.b) : x);
  }
  template <class T>
  HALO_HOST_DEVICE T first(T x) const {
    return x != x ? x : (x >= static_cast<T>(p.a) && x <= static_cast<T>(p.b) ? T(1) : T(0));
  }
  template <class T>
  HALO_HOST_DEVICE T second(T) const {
    return T(0);
  }
};
struct Pow : Base {
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return std::pow(x, static_cast<T>(p.a));
  }
  template <class T>
  HALO_HOST_DEVICE T first(T x) const {
    return p.a == 0 ? T(0) : static_cast<T>(p.a) * std::pow(x, static_cast<T>(p.a - 1));
  }
  template <class T>
  HALO_HOST_DEVICE T second(T x) const {
    const double c = p.a * (p.a - 1);
    return c == 0 ? T(0) : static_cast<T>(c) * std::pow(x, static_cast<T>(p.a - 2));
  }
};
struct Reciprocal : Base {
  template <class T>
  HALO_HOST_DEVICE T value(T x) const {
    return T(1) / x;
  }
  template <class T>
  HALO_HOST_DEVICE T first(T x) const {
    return T(-1) / (x * x);
  }
  template <class T>
  HALO_HOST_DEVICE T second(T x) const {
    return T(2) / (x * x * x);
  }
};

}  // namespace functor

/// Calls `f` with the functor of `op`.
template <class F>
decltype(auto) dispatch_unary(UnaryOp op, UnaryParams p, F&& f) {
  switch (op) {
    case UnaryOp::Scale: return f(functor::Scale{{p}});
    case UnaryOp::Shift: return f(functor::Shift{{p}});
    case UnaryOp::Abs: return f(functor::Abs{{p}});
    case UnaryOp::Exp: return f(functor::Exp{{p}});
    case UnaryOp::Log: return f(functor::Log{{p}});
    case UnaryOp::Sqrt: return f(functor::Sqrt{{p}});
    case UnaryOp::Sin: return f(functor::Sin{{p}});
    case UnaryOp::Cos: return f(functor::Cos{{p}});
    case UnaryOp::Tanh: return f(functor::Tanh{{p}});
    case UnaryOp::Sigmoid: return f(functor::Sigmoid{{p}});
    case UnaryOp::Softplus: return f(functor::Softplus{{p}});
    case UnaryOp::Relu: return f(functor::Relu{{p}});
    case UnaryOp::LeakyRelu: return f(functor::LeakyRelu{{p}});
    case UnaryOp::Gelu: return f(functor::Gelu{{p}});
    case UnaryOp::GeluTanh: return f(functor::GeluTanh{{p}});
    case UnaryOp::Silu: return f(functor::Silu{{p}});
    case UnaryOp::Clamp: return f(functor::Clamp{{p}});
    case UnaryOp::Pow: return f(functor::Pow{{p}});
    case UnaryOp::Reciprocal: return f(functor::Reciprocal{{p}});
  }
  fail<InternalError>("dispatch_unary: unknown op");
}

}  // namespace halo
