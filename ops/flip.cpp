#include <halo/core/error.h>
#include <halo/ops/backend.h>
#include <halo/ops/flip.h>
#include <halo/ops/flip_backend.h>

#include <algorithm>

namespace halo::ops {

Tensor flip(const Tensor& x, const Shape& dims) {
  check_defined("flip", {{"input", x}});
  Shape axes;
  for (int64_t dim : dims) {
    const int axis = normalize_axis("flip", dim, x.rank());
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) fail("flip: dims expected each axis once, got ", dims);
    axes.push_back(axis);
  }
  Tensor y = empty(x.shape(), x.options());
  run_backend<HalfKernels::Everywhere>("flip", x.device(), cpu::flip, cuda::flip, x, axes, writes(y));
  return y;
}

}  // namespace halo::ops
