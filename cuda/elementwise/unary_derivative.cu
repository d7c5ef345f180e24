// Derivatives of elementwise functions of one argument; the formulas are in ops/unary_functors.h.
#include <halo/core/view.h>
#include <halo/ops/unary_backend.h>

#include "../device/map.cuh"
#include "../device/number.cuh"
#include "half_forms.cuh"

namespace halo::cuda {
namespace {

/// g * slope(s), and 0 where g is 0, however large the slope.
template <class T, class Slope>
__device__ __forceinline__ T scaled(T up, T at, Slope slope) {
  const auto g = device::to_accumulator(up);
  return device::from_accumulator<T>(g == 0 ? 0 : g * slope(device::to_accumulator(at)));
}

template <class F>
struct First {
  F f;
  template <class T>
  __device__ T operator()(T up, T at) const {
    return scaled(up, at, [&](auto s) { return f.first(s); });
  }
};

template <class F>
struct Second {
  F f;
  template <class T>
  __device__ T operator()(int64_t, T up, T at) const {
    return scaled(up, at, [&](auto s) { return f.second(s); });
  }
};

}  // namespace

void unary_derivative(UnaryOp op, UnaryParams params, int order, const Tensor& g, const Tensor& s, const Tensor& out) {
  constexpr const char* kName = "unary_derivative";
  dispatch_floating(kName, g.dtype(), [&]<class T>(std::type_identity<T>) {
    dispatch_unary(op, params, [&](auto f) {
      const auto form = form_of<decltype(f), T>(f);
      if (order == 1) return map(kName, First{form}, Elements<T>{out}, Elements<T>{g}, Elements<T>{s});
      // Rare: a small kernel for dense operands.
      const Tensor dense_g = view::dense(g), dense_s = view::dense(s);
      generate<1>(kName, Second{form}, Elements<T>{out}, Elements<T>{dense_g}, Elements<T>{dense_s});
    });
  });
}

}  // namespace halo::cuda
