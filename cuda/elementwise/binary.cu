// Arithmetic on two arguments and choice by a mask; the formulas are in ops/binary_functors.h.
#include <halo/ops/binary_backend.h>
#include <halo/ops/binary_functors.h>

#include "../device/map.cuh"
#include "comparison.h"

namespace halo::cuda {
namespace {

struct Choose {
  template <class T>
  __device__ T operator()(bool condition, T a, T b) const {
    return condition ? a : b;
  }
};

}  // namespace

void binary(BinaryOp op, const Tensor& a, const Tensor& b, const Tensor& out) {
  if (is_comparison(op)) return compare(op, a, b, out);
  dispatch_arithmetic_dtype("binary", a.dtype(), [&]<class T>(std::type_identity<T>) {
    dispatch_arithmetic(op, [&](auto f) { map("binary", f, Elements<T>{out}, Elements<T>{a}, Elements<T>{b}); });
  });
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch_size(a.dtype(), [&]<class T>(std::type_identity<T>) {
    map("where", Choose{}, Elements<T>{out}, Elements<bool>{condition}, Elements<T>{a}, Elements<T>{b});
  });
}

}  // namespace halo::cuda
