// residual_norm on CUDA: one kernel where a warp holds a row, else sums and the kernels of layer norm.
#include <halo/core/copy.h>
#include <halo/core/view.h>
#include <halo/ops/binary_backend.h>
#include <halo/ops/norm_backend.h>
#include <halo/ops/reduce_backend.h>
#include <halo/ops/residual_norm_backend.h>

#include "../runtime/device.h"
#include "layout.h"
#include "rows.h"

namespace halo::cuda {
namespace {

RowNormProblem rows(const ResidualNormProblem& p) {
  return {.rows = p.rows, .channels_per_row = p.length, .eps = p.eps};
}

void add(const Tensor& t, const Tensor& to) { binary(BinaryOp::Add, to, view::expand(t, to.shape()), to); }

}  // namespace

void residual_norm_forward(const ResidualNormProblem& p, const ResidualNormTensors& t, const ResidualNormResult& r) {
  if (r.y.numel() == 0) return;
  if (p.length > kWarpRow) {
    halo::copy(t.x, r.sum);
    if (t.x_bias.defined()) add(t.x_bias, r.sum);
    if (t.residual.defined()) add(view::reshape(t.residual, r.sum.shape()), r.sum);
    return row_norm_forward(rows(p), r.sum, t.weight, t.bias, {r.y, r.mean, r.rstd});
  }
  dispatch_float("residual_norm", t.x.dtype(), [&]<class T>(std::type_identity<T>) {
    const DeviceScope scope(t.x.device());
    rows_forward<T>("residual_norm",
                    {.rows = p.rows,
                     .length = p.length,
                     .eps = p.eps,
                     .x = t.x.data<T>(),
                     .x_bias = data_or_null<T>(t.x_bias),
                     .residual = data_or_null<T>(t.residual),
                     .weight = data_or_null<T>(t.weight),
                     .bias = data_or_null<T>(t.bias),
                     .sum = r.sum.data<T>(),
                     .y = r.y.data<T>(),
                     .mean = r.mean.data<T>(),
                     .rstd = r.rstd.data<T>()},
                    scope.stream());
  });
}

void residual_norm_backward(const ResidualNormProblem& p, const ResidualNormResult& r, const Tensor& weight,
                            const Tensor& g_sum, const Tensor& g_y, const ResidualNormGrads& grads) {
  if (p.length > kWarpRow || g_y.numel() == 0) {
    row_norm_backward(rows(p), g_y, r.sum, weight, r.mean, r.rstd, {grads.sum, grads.weight, grads.bias});
    if (g_y.numel() == 0) return halo::fill(grads.x_bias, 0);
    if (g_sum.defined()) add(view::reshape(g_sum, grads.sum.shape()), grads.sum);
    return reduce(ReduceOp::Sum, view::transpose(view::reshape(grads.sum, {p.rows, p.length}), 0, 1), 1, grads.x_bias);
  }
  dispatch_float("residual_norm_backward", g_y.dtype(), [&]<class T>(std::type_identity<T>) {
    const Tensor workspace = empty({rows_backward_workspace(p.rows, p.length)}, g_y.options());
    const DeviceScope scope(g_y.device());
    rows_backward<T>("residual_norm_backward",
                     {.rows = p.rows,
                      .length = p.length,
                      .x = r.sum.data<T>(),
                      .mean = r.mean.data<T>(),
                      .rstd = r.rstd.data<T>(),
                      .weight = data_or_null<T>(weight),
                      .g_x = data_or_null<T>(g_sum),
                      .g_y = g_y.data<T>(),
                      .x_grad = grads.sum.data<T>(),
                      .weight_grad = grads.weight.data<T>(),
                      .bias_grad = grads.bias.data<T>(),
                      .x_sum = grads.x_bias.data<T>()},
                     workspace.data<T>(), scope.stream());
  });
}

}  // namespace halo::cuda
