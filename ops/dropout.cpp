#include <halo/core/error.h>
#include <halo/ops/backend.h>
#include <halo/ops/dropout.h>
#include <halo/ops/dropout_backend.h>

namespace halo::ops {

Tensor dropout(const Tensor& x, double p, PhiloxState state) {
  if (!(p >= 0 && p <= 1)) fail("dropout: p expected from 0 to 1, got ", p);
  check_floating("dropout", {{"input", x}});
  Tensor y = empty(x.shape(), x.options());
  run_backend<HalfKernels::Cuda>("dropout", x.device(), cpu::dropout, cuda::dropout, p, state, x, writes(y));
  return y;
}

}  // namespace halo::ops
