#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/residual_norm.h>
#include <halo/ops/residual_norm_backend.h>

namespace halo::ops {
namespace {

void check(const char* op, const char* argument, const Tensor& t, int64_t numel) {
  if (t.defined() && t.numel() != numel) fail(op, ": ", argument, " expects ", numel, " values, got ", t.shape());
}

Tensor dense_or_undefined(const Tensor& t) { return t.defined() ? view::dense(t) : t; }

}  // namespace

ResidualNormResult residual_norm_forward(const ResidualNormProblem& p, const ResidualNormTensors& t) {
  constexpr const char* op = "residual_norm";
  check_same_dtype_and_device(
      op, {{"input", t.x}, {"input_bias", t.x_bias}, {"residual", t.residual}, {"weight", t.weight}, {"bias", t.bias}});
  check(op, "input", t.x, p.rows * p.length);
  check(op, "residual", t.residual, p.rows * p.length);
  check(op, "input_bias", t.x_bias, p.length);
  check(op, "weight", t.weight, p.length);
  check(op, "bias", t.bias, p.length);
  const auto like = [&](const Shape& shape) { return empty(shape, t.x.options()); };
  const ResidualNormResult result{like(t.x.shape()), like(t.x.shape()), like({p.rows}), like({p.rows})};
  const ResidualNormTensors dense{view::dense(t.x), dense_or_undefined(t.x_bias), dense_or_undefined(t.residual),
                                  dense_or_undefined(t.weight), dense_or_undefined(t.bias)};
  run_backend("residual_norm_forward", t.x.device(), cpu::residual_norm_forward, cuda::residual_norm_forward, p, dense,
              writes(result));
  return result;
}

ResidualNormGrads residual_norm_backward(const ResidualNormProblem& p, const ResidualNormResult& r,
                                         const Tensor& weight, const Tensor& g_sum, const Tensor& g_y) {
  constexpr const char* op = "residual_norm_backward";
  check_same_dtype_and_device(op, {{"sum", r.sum}, {"weight", weight}, {"grad_sum", g_sum}, {"grad_output", g_y}});
  check(op, "grad_output", g_y, p.rows * p.length);
  check(op, "grad_sum", g_sum, p.rows * p.length);
  const auto row = [&] { return empty({p.length}, g_y.options()); };
  const ResidualNormGrads grads{empty(r.sum.shape(), g_y.options()), row(), row(), row()};
  run_backend("residual_norm_backward", g_y.device(), cpu::residual_norm_backward, cuda::residual_norm_backward, p, r,
              dense_or_undefined(weight), dense_or_undefined(g_sum), view::dense(g_y), writes(grads));
  return grads;
}

}  // namespace halo::ops
