#include <halo/core/strided.h>
#include <halo/ops/flip_backend.h>

namespace halo::cpu {

void flip(const Tensor& x, const Shape& dims, const Tensor& y) {
  if (x.numel() == 0) return;
  // A reversed axis starts at its last element and has the opposite stride.
  Shape strides = x.strides();
  int64_t start = 0;
  for (int64_t dim : dims) {
    const int axis = static_cast<int>(dim);
    start += (x.shape()[axis] - 1) * strides[axis];
    strides[axis] = -strides[axis];
  }
  dispatch_dtype(x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* const in = x.data<T>() + start;
    T* const out = y.data<T>();
    StridedLoop<2>(x.shape(), {y.strides(), strides}).for_each_run([&](const auto& at, const auto& step, int64_t n) {
      for (int64_t i = 0; i < n; ++i) out[at[0] + i * step[0]] = in[at[1] + i * step[1]];
    });
  });
}

}  // namespace halo::cpu
