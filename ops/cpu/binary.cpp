#include <halo/ops/binary_backend.h>
#include <halo/ops/binary_functors.h>

#include "elementwise.h"

namespace halo::cpu {

void binary(BinaryOp op, const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch_arithmetic_dtype("binary", a.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    if (is_comparison(op)) {
      dispatch_comparison(op, [&](auto f) { map2<bool, T, T>(out, a, b, f); });
    } else {
      dispatch_arithmetic(op, [&](auto f) { map2<T, T, T>(out, a, b, f); });
    }
  });
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  if (out.numel() == 0) return;
  dispatch_dtype(a.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const bool* const pc = condition.data<bool>();
    const T *const pa = a.data<T>(), *const pb = b.data<T>();
    T* const po = out.data<T>();
    StridedLoop<4>(out.shape(), {out.strides(), condition.strides(), a.strides(), b.strides()})
        .for_each_run([&](const auto& at, const auto& step, int64_t n) {
          for (int64_t i = 0; i < n; ++i) {
            po[at[0] + i * step[0]] = pc[at[1] + i * step[1]] ? pa[at[2] + i * step[2]] : pb[at[3] + i * step[3]];
          }
        });
  });
}

}  // namespace halo::cpu
