// residual_norm on CUDA in one kernel, a team of threads a row.
#include <halo/ops/residual_norm_backend.h>

#include "../runtime/device.h"
#include "rows.h"

namespace halo::cuda {

bool residual_norm_fits(const ResidualNormProblem& p) { return is_held_row(p.length, sizeof(double)); }

void residual_norm_forward(const ResidualNormProblem& p, const ResidualNormTensors& t, const ResidualNormResult& r) {
  dispatch_floating("residual_norm", t.x.dtype(), [&]<class T>(std::type_identity<T>) {
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
                     .mean = r.mean.data<RowStatistic<T>>(),
                     .rstd = r.rstd.data<RowStatistic<T>>()},
                    scope.stream());
  });
}

void residual_norm_backward(const ResidualNormProblem& p, const ResidualNormResult& r, const Tensor& weight,
                            const Tensor& g_sum, const Tensor& g_y, const ResidualNormGrads& grads) {
  dispatch_floating("residual_norm_backward", g_y.dtype(), [&]<class T>(std::type_identity<T>) {
    const RowBackward<T> args{.rows = p.rows,
                              .length = p.length,
                              .x = r.sum.data<T>(),
                              .mean = r.mean.data<RowStatistic<T>>(),
                              .rstd = r.rstd.data<RowStatistic<T>>(),
                              .weight = data_or_null<T>(weight),
                              .g_x = data_or_null<T>(g_sum),
                              .g_y = g_y.data<T>(),
                              .x_grad = grads.sum.data<T>(),
                              .weight_grad = grads.weight.data<T>(),
                              .bias_grad = grads.bias.data<T>(),
                              .x_sum = grads.x_bias.data<T>()};
    const Tensor workspace = empty({rows_backward_workspace(args)}, r.mean.options());
    const DeviceScope scope(g_y.device());
    rows_backward<T>("residual_norm_backward", args, workspace.data<RowStatistic<T>>(), scope.stream());
  });
}

}  // namespace halo::cuda
