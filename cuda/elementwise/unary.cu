// Elementwise functions of one argument; the formulas are in ops/unary_functors.h.
#include <halo/ops/unary_backend.h>

#include "../device/map.cuh"
#include "../device/number.cuh"
#include "half_forms.cuh"

namespace halo::cuda {
namespace {

template <class F>
struct Value {
  F f;
  template <class T>
  __device__ T operator()(T x) const {
    return device::from_accumulator<T>(f.value(device::to_accumulator(x)));
  }
};

}  // namespace

void unary(UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& y) {
  dispatch_floating("unary", x.dtype(), [&]<class T>(std::type_identity<T>) {
    dispatch_unary(op, params,
                   [&](auto f) { map("unary", Value{form_of<decltype(f), T>(f)}, Elements<T>{y}, Elements<T>{x}); });
  });
}

}  // namespace halo::cuda
