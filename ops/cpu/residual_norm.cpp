// On the CPU: sums, then the kernels of layer norm.
#include <halo/core/copy.h>
#include <halo/core/view.h>
#include <halo/ops/binary_backend.h>
#include <halo/ops/norm_backend.h>
#include <halo/ops/reduce_backend.h>
#include <halo/ops/residual_norm_backend.h>

namespace halo::cpu {
namespace {

RowNormProblem rows(const ResidualNormProblem& p) {
  return {.rows = p.rows, .channels_per_row = p.length, .eps = p.eps};
}

void add(const Tensor& t, const Tensor& to) { binary(BinaryOp::Add, to, view::expand(t, to.shape()), to); }

}  // namespace

void residual_norm_forward(const ResidualNormProblem& p, const ResidualNormTensors& t, const ResidualNormResult& r) {
  halo::copy(t.x, r.sum);
  if (t.x_bias.defined()) add(t.x_bias, r.sum);
  if (t.residual.defined()) add(view::reshape(t.residual, r.sum.shape()), r.sum);
  row_norm_forward(rows(p), r.sum, t.weight, t.bias, {r.y, r.mean, r.rstd});
}

void residual_norm_backward(const ResidualNormProblem& p, const ResidualNormResult& r, const Tensor& weight,
                            const Tensor& g_sum, const Tensor& g_y, const ResidualNormGrads& grads) {
  row_norm_backward(rows(p), g_y, r.sum, weight, r.mean, r.rstd, {grads.sum, grads.weight, grads.bias});
  if (g_sum.defined()) add(view::reshape(g_sum, grads.sum.shape()), grads.sum);
  reduce(ReduceOp::Sum, view::transpose(view::reshape(grads.sum, {p.rows, p.length}), 0, 1), 1, grads.x_bias);
}

}  // namespace halo::cpu
