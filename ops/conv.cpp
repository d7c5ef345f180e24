#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/conv.h>
#include <halo/ops/conv_backend.h>

namespace halo::ops {
namespace {

/// A copy of the weight, made for one call, is not used again.
WeightUse use_of(const Tensor& dense, const Tensor& w, WeightUse use) {
  return dense.storage() == w.storage() ? use : WeightUse::Once;
}

}  // namespace

Tensor conv_forward(const ConvProblem& problem, const Tensor& x, const Tensor& w, const Tensor& bias,
                    const Activation& activation, WeightUse use) {
  constexpr const char* op = "conv_forward";
  check_same_dtype_and_device(op, {{"input", x}, {"weight", w}, {"bias", bias, kOptional}});
  check_shape(op, "input", x, problem.x_shape());
  check_shape(op, "weight", w, problem.w_shape());
  check_shape(op, "bias", bias, {problem.out_channels});
  Tensor y = empty(problem.y_shape(), x.options());
  const Tensor dense_x = view::dense(x), dense_w = view::dense(w), dense_bias = view::dense_or_undefined(bias);
  run_backend<HalfKernels::Cuda>(op, x.device(), cpu::conv_forward, cuda::conv_forward, problem, dense_x, dense_w,
                                 dense_bias, activation, use_of(dense_w, w, use), writes(y));
  return y;
}

Tensor conv_backward_input(const ConvProblem& problem, const Tensor& g, const Tensor& w, const Tensor& bias,
                           WeightUse use) {
  constexpr const char* op = "conv_backward_input";
  check_same_dtype_and_device(op, {{"grad_output", g}, {"weight", w}, {"bias", bias, kOptional}});
  check_shape(op, "grad_output", g, problem.y_shape());
  check_shape(op, "weight", w, problem.w_shape());
  check_shape(op, "bias", bias, {problem.in_channels});
  Tensor x = empty(problem.x_shape(), g.options());
  const Tensor dense_g = view::dense(g), dense_w = view::dense(w), dense_bias = view::dense_or_undefined(bias);
  run_backend<HalfKernels::Cuda>(op, g.device(), cpu::conv_backward_input, cuda::conv_backward_input, problem, dense_g,
                                 dense_w, dense_bias, use_of(dense_w, w, use), writes(x));
  return x;
}

Tensor conv_backward_weight(const ConvProblem& problem, const Tensor& x, const Tensor& g) {
  constexpr const char* op = "conv_backward_weight";
  check_same_dtype_and_device(op, {{"input", x}, {"grad_output", g}});
  check_shape(op, "input", x, problem.x_shape());
  check_shape(op, "grad_output", g, problem.y_shape());
  Tensor w = empty(problem.w_shape(), x.options());
  const Tensor dense_x = view::dense(x), dense_g = view::dense(g);
  run_backend<HalfKernels::Cuda>(op, x.device(), cpu::conv_backward_weight, cuda::conv_backward_weight, problem,
                                 dense_x, dense_g, writes(w));
  return w;
}

Tensor sum_per_channel(const Tensor& g) {
  if (g.rank() < 2) fail("sum_per_channel: input expects [N, C, ...], got ", g.shape());
  Tensor sum = empty({g.size(1)}, g.options());
  const Tensor dense_g = view::dense(g);
  run_backend<HalfKernels::Cuda>("sum_per_channel", g.device(), cpu::sum_per_channel, cuda::sum_per_channel, dense_g,
                                 writes(sum));
  return sum;
}

}  // namespace halo::ops
