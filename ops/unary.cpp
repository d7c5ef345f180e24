#include <halo/core/error.h>
#include <halo/ops/backend.h>
#include <halo/ops/unary.h>
#include <halo/ops/unary_backend.h>

namespace halo::ops {

Tensor unary(UnaryOp op, const Tensor& x, UnaryParams params, const char* name) {
  check_floating(name, {{"input", x}});
  Tensor y = empty(x.shape(), x.options());
  run_backend<HalfKernels::Cuda>(name, x.device(), cpu::unary, cuda::unary, op, params, x, writes(y));
  return y;
}

Tensor unary_derivative(UnaryOp op, int order, const Tensor& g, const Tensor& s, UnaryParams params) {
  check_same_dtype_and_device("unary_derivative", {{"grad_output", g}, {"saved", s}});
  if (g.shape() != s.shape()) fail("unary_derivative: grad_output expected shape ", s.shape(), ", got ", g.shape());
  if (order != 1 && order != 2) fail("unary_derivative: order expected 1 or 2, got ", order);
  Tensor out = empty(g.shape(), g.options());
  run_backend<HalfKernels::Cuda>("unary_derivative", g.device(), cpu::unary_derivative, cuda::unary_derivative, op,
                                 params, order, g, s, writes(out));
  return out;
}

}  // namespace halo::ops
