#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/local_response_norm.h>
#include <halo/ops/local_response_norm_backend.h>

namespace halo::ops {
namespace {

void check(const char* op, const LocalResponseNorm& norm, const Tensor& x) {
  check_floating(op, {{"input", x}});
  if (x.rank() < 2) fail(op, ": input expects at least 2 axes [N, C, ...], got ", x.shape());
  if (norm.size < 1) fail(op, ": size expects at least 1, got ", norm.size);
}

}  // namespace

Tensor local_response_norm_forward(const LocalResponseNorm& norm, const Tensor& x) {
  check("local_response_norm", norm, x);
  Tensor y = empty(x.shape(), x.options());
  const Tensor dense_x = view::dense(x);
  run_backend<HalfKernels::Cuda>("local_response_norm_forward", x.device(), cpu::local_response_norm_forward,
                                 cuda::local_response_norm_forward, norm, dense_x, writes(y));
  return y;
}

Tensor local_response_norm_backward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& g) {
  constexpr const char* op = "local_response_norm_backward";
  check(op, norm, x);
  check_same_dtype_and_device(op, {{"input", x}, {"grad_output", g}});
  if (g.shape() != x.shape()) fail(op, ": grad_output expects shape ", x.shape(), ", got ", g.shape());
  Tensor dx = empty(x.shape(), x.options());
  const Tensor dense_x = view::dense(x), dense_g = view::dense(g);
  run_backend<HalfKernels::Cuda>("local_response_norm_backward", x.device(), cpu::local_response_norm_backward,
                                 cuda::local_response_norm_backward, norm, dense_x, dense_g, writes(dx));
  return dx;
}

}  // namespace halo::ops
