#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/cumsum.h>
#include <halo/ops/cumsum_backend.h>

namespace halo::ops {

Tensor cumsum(const Tensor& x, int64_t dim, bool reverse) {
  check_defined("cumsum", {{"input", x}});
  const int axis = normalize_axis("cumsum", dim, x.rank());
  if (x.dtype() == DType::UInt8 || x.dtype() == DType::Bool) {
    fail("cumsum: not implemented for ", name(x.dtype()), "; convert first");
  }
  Tensor y = empty(x.shape(), x.options());
  const Tensor dense_x = view::dense(x);
  run_backend<HalfKernels::Cuda>("cumsum", x.device(), cpu::cumsum, cuda::cumsum, dense_x, axis, reverse, writes(y));
  return y;
}

}  // namespace halo::ops
