#include <halo/ops/binary_functors.h>

#include "../device/map.cuh"
#include "../device/number.cuh"
#include "comparison.h"

namespace halo::cuda {
namespace {

template <class F>
struct Compare {
  F f;
  template <class T>
  __device__ bool operator()(T a, T b) const {
    return f(device::to_accumulator(a), device::to_accumulator(b));
  }
};

}  // namespace

void compare(BinaryOp op, const Tensor& a, const Tensor& b, const Tensor& out) {
  const auto run = [&]<class T>(std::type_identity<T>) {
    dispatch_comparison(
        op, [&]<class F>(F f) { map("compare", Compare<F>{f}, Elements<bool>{out}, Elements<T>{a}, Elements<T>{b}); });
  };
  if (is_half(a.dtype())) return dispatch_floating("binary", a.dtype(), run);
  dispatch_arithmetic_dtype("binary", a.dtype(), run);
}

}  // namespace halo::cuda
