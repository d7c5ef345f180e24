// Elementwise functions of one argument; the formulas are in ops/unary_functors.h.
#include <halo/ops/unary_backend.h>

#include "../device/map.cuh"

namespace halo::cuda {
namespace {

template <class F>
struct Value {
  F f;
  template <class T>
  __device__ T operator()(T x) const {
    return f.value(x);
  }
};

}  // namespace

void unary(UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& y) {
  dispatch_float("unary", x.dtype(), [&]<class T>(std::type_identity<T>) {
    dispatch_unary(op, params, [&]<class F>(F f) { map("unary", Value<F>{f}, Elements<T>{y}, Elements<T>{x}); });
  });
}

}  // namespace halo::cuda
