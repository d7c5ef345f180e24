// Arithmetic on two arguments and choice by a mask; the formulas are in ops/binary_functors.h.
#include <halo/ops/binary_backend.h>
#include <halo/ops/binary_functors.h>

#include "../device/map.cuh"
#include "../device/number.cuh"
#include "comparison.h"

namespace halo::cuda {
namespace {

struct Choose {
  template <class T>
  __device__ T operator()(bool condition, T a, T b) const {
    return condition ? a : b;
  }
};

/// Arithmetic on half types happens in float32.
template <class F>
struct Arithmetic {
  F f;
  template <class T>
  __device__ T operator()(T a, T b) const {
    return device::from_accumulator<T>(f(device::to_accumulator(a), device::to_accumulator(b)));
  }
};

}  // namespace

void binary(BinaryOp op, const Tensor& a, const Tensor& b, const Tensor& out) {
  if (is_comparison(op)) return compare(op, a, b, out);
  const auto run = [&]<class T>(std::type_identity<T>) {
    dispatch_arithmetic(
        op, [&]<class F>(F f) { map("binary", Arithmetic<F>{f}, Elements<T>{out}, Elements<T>{a}, Elements<T>{b}); });
  };
  if (is_half(a.dtype())) return dispatch_floating("binary", a.dtype(), run);
  dispatch_arithmetic_dtype("binary", a.dtype(), run);
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch_size(a.dtype(), [&]<class T>(std::type_identity<T>) {
    map("where", Choose{}, Elements<T>{out}, Elements<bool>{condition}, Elements<T>{a}, Elements<T>{b});
  });
}

}  // namespace halo::cuda
