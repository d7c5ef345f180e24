#include <halo/autograd/arithmetic.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/unary.h>
#include <halo/core/error.h>
#include <halo/ops/reduce.h>
#include <halo/optim/clip.h>

#include <cmath>

namespace halo::optim {

Tensor clip_grad_norm_(const std::vector<Tensor>& params, double max_norm, double norm_type) {
  const bool largest = std::isinf(norm_type) && norm_type > 0;
  if (!largest && norm_type != 2) fail("clip_grad_norm_: norm_type expected 2 or infinity, got ", norm_type);
  if (!(max_norm >= 0)) fail("clip_grad_norm_: max_norm expected 0 or more, got ", max_norm);
  const NoGradGuard guard;
  Tensor total;  // the norm, or (for norm_type 2) its square
  for (const Tensor& param : params) {
    const Tensor grad = param.grad();
    if (!grad.defined() || grad.numel() == 0) continue;
    if (largest) {
      const Tensor norm = amax(abs(grad)).to(DType::Float64);
      total = total.defined() ? maximum(total, norm) : norm;
    } else {
      const Tensor norm = ops::reduce(ReduceOp::Norm, grad).to(DType::Float64);
      total = total.defined() ? total + norm * norm : norm * norm;
    }
  }
  if (!total.defined()) return zeros({}, {.dtype = DType::Float64});
  if (!largest) total = sqrt(total);
  const Tensor factor = clamp(max_norm / (total + 1e-6), 0, 1);
  for (const Tensor& param : params) {
    const Tensor grad = param.grad();
    if (grad.defined()) grad.copy_(grad * factor.to(grad.dtype()));
  }
  return total;
}

void clip_grad_value_(const std::vector<Tensor>& params, double value) {
  if (!(value >= 0)) fail("clip_grad_value_: value expected 0 or more, got ", value);
  const NoGradGuard guard;
  for (const Tensor& param : params) {
    const Tensor grad = param.grad();
    if (grad.defined()) grad.copy_(clamp(grad, -value, value));
  }
}

}  // namespace halo::optim
