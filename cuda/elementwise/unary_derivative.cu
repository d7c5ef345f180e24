// Derivatives of elementwise functions of one argument; the formulas are in ops/unary_functors.h.
#include <halo/ops/unary_backend.h>

#include "../device/map.cuh"

namespace halo::cuda {
namespace {

/// Both orders in one kernel: the branch is the same for every thread.
template <class F>
struct Derivative {
  F f;
  int order;
  template <class T>
  __device__ T operator()(T g, T s) const {
    if (g == T(0)) return T(0);
    return g * (order == 1 ? f.first(s) : f.second(s));
  }
};

}  // namespace

void unary_derivative(UnaryOp op, UnaryParams params, int order, const Tensor& g, const Tensor& s, const Tensor& out) {
  dispatch_float("unary_derivative", g.dtype(), [&]<class T>(std::type_identity<T>) {
    dispatch_unary(op, params, [&]<class F>(F f) {
      map("unary_derivative", Derivative<F>{f, order}, Elements<T>{out}, Elements<T>{g}, Elements<T>{s});
    });
  });
}

}  // namespace halo::cuda
