// Losses between two tensors of one shape.
#pragma once

#include <halo/core/error.h>
#include <halo/core/host_device.h>
#include <halo/core/tensor.h>
#include <halo/ops/reduce.h>

#include <cmath>

namespace halo {

enum class PairLoss : uint8_t { Mse, L1, Huber, BinaryCrossEntropy };

namespace functor {

// value(x, t), and its derivatives by x and by t: for CPU loops and CUDA kernels alike.

struct Mse {
  template <class T>
  HALO_HOST_DEVICE T value(T x, T t) const {
    return (x - t) * (x - t);
  }
  template <class T>
  HALO_HOST_DEVICE T by_input(T x, T t) const {
    return T(2) * (x - t);
  }
  template <class T>
  HALO_HOST_DEVICE T by_target(T x, T t) const {
    return T(2) * (t - x);
  }
};
/// |x - t|; slope 0 at 0.
struct L1 {
  template <class T>
  HALO_HOST_DEVICE T value(T x, T t) const {
    return std::abs(x - t);
  }
  template <class T>
  HALO_HOST_DEVICE T by_input(T x, T t) const {
    return x > t ? T(1) : (x < t ? T(-1) : (x == t ? T(0) : x - t));
  }
  template <class T>
  HALO_HOST_DEVICE T by_target(T x, T t) const {
    return by_input(t, x);
  }
};
/// d^2 / 2 up to |d| = delta, delta (|d| - delta / 2) beyond.
struct Huber {
  double delta;
  template <class T>
  HALO_HOST_DEVICE T value(T x, T t) const {
    const T d = std::abs(x - t), limit = static_cast<T>(delta);
    return d <= limit ? T(0.5) * d * d : limit * (d - T(0.5) * limit);
  }
  template <class T>
  HALO_HOST_DEVICE T by_input(T x, T t) const {
    const T d = x - t, limit = static_cast<T>(delta);
    return d > limit ? limit : (d < -limit ? -limit : d);
  }
  template <class T>
  HALO_HOST_DEVICE T by_target(T x, T t) const {
    return by_input(t, x);
  }
};
/// -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)), without overflow.
struct BinaryCrossEntropy {
  template <class T>
  HALO_HOST_DEVICE T value(T x, T t) const {
    return (x > T(0) ? x : T(0)) - x * t + std::log1p(std::exp(-std::abs(x)));
  }
  template <class T>
  HALO_HOST_DEVICE T by_input(T x, T t) const {
    return T(1) / (T(1) + std::exp(-x)) - t;
  }
  template <class T>
  HALO_HOST_DEVICE T by_target(T x, T) const {
    return -x;
  }
};

}  // namespace functor

/// Calls `f` with the functor of `op`; `delta` is Huber's.
template <class F>
decltype(auto) dispatch_pair_loss(PairLoss op, double delta, F&& f) {
  switch (op) {
    case PairLoss::Mse: return f(functor::Mse{});
    case PairLoss::L1: return f(functor::L1{});
    case PairLoss::Huber: return f(functor::Huber{delta});
    case PairLoss::BinaryCrossEntropy: return f(functor::BinaryCrossEntropy{});
  }
  fail<InternalError>("dispatch_pair_loss: unknown op");
}

namespace ops {

/// f(x, t), elementwise or reduced to one element. One shape, dtype and device; `name` is the caller's.
Tensor pair_loss(const char* name, PairLoss op, double delta, Reduction reduction, const Tensor& x, const Tensor& t);

/// g df/dx, or g df/dt where `to_target`, for g of x's shape.
Tensor pair_loss_backward(PairLoss op, double delta, bool to_target, const Tensor& g, const Tensor& x, const Tensor& t);

}  // namespace ops
}  // namespace halo
