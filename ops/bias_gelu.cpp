#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/bias_gelu.h>
#include <halo/ops/bias_gelu_backend.h>

namespace halo::ops {
namespace {

/// [rows, C], dense.
Tensor as_rows(const Tensor& t, int64_t columns) {
  return view::dense(view::reshape(t, {columns == 0 ? 0 : t.numel() / columns, columns}));
}

void check(const char* op, UnaryOp form, const Tensor& x, const Tensor& bias) {
  if (form != UnaryOp::Gelu && form != UnaryOp::GeluTanh) fail(op, ": form expects Gelu or GeluTanh");
  check_floating(op, {{"input", x}, {"bias", bias}});
  if (x.rank() == 0 || bias.shape() != Shape{x.size(-1)}) {
    fail(op, ": bias expects the last extent of input ", x.shape(), ", got ", bias.shape());
  }
}

}  // namespace

Tensor bias_gelu_forward(UnaryOp form, const Tensor& x, const Tensor& bias) {
  check("bias_gelu", form, x, bias);
  const Tensor rows = as_rows(x, bias.numel());
  const Tensor y = empty(rows.shape(), x.options());
  run_backend("bias_gelu_forward", x.device(), cpu::bias_gelu_forward, cuda::bias_gelu_forward, form, rows,
              view::dense(bias), writes(y));
  return view::reshape(y, x.shape());
}

BiasGeluGrads bias_gelu_backward(UnaryOp form, const Tensor& g, const Tensor& x, const Tensor& bias, bool overwrite) {
  constexpr const char* op = "bias_gelu_backward";
  check(op, form, x, bias);
  check_same_dtype_and_device(op, {{"grad_output", g}, {"input", x}});
  if (g.shape() != x.shape()) fail(op, ": grad_output expects ", x.shape(), ", got ", g.shape());
  const Tensor rows = as_rows(x, bias.numel());
  const Tensor up = as_rows(g, bias.numel());
  // A check against the CPU needs to find g unchanged.
  const bool in_place = overwrite && !backend_checking();
  const BiasGeluGrads grads{in_place ? up : empty(rows.shape(), x.options()), empty(bias.shape(), x.options()),
                            empty(rows.shape(), x.options())};
  run_backend("bias_gelu_backward", x.device(), cpu::bias_gelu_backward, cuda::bias_gelu_backward, form, up, rows,
              view::dense(bias), writes(grads));
  return {view::reshape(grads.x, x.shape()), grads.bias, view::reshape(grads.y, x.shape())};
}

}  // namespace halo::ops
