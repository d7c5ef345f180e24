#include <halo/ops/binary_functors.h>

#include "../device/map.cuh"
#include "comparison.h"

namespace halo::cuda {

void compare(BinaryOp op, const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch_arithmetic_dtype("binary", a.dtype(), [&]<class T>(std::type_identity<T>) {
    dispatch_comparison(op, [&](auto f) { map("compare", f, Elements<bool>{out}, Elements<T>{a}, Elements<T>{b}); });
  });
}

}  // namespace halo::cuda
