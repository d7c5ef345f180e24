#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/causal_conv1d.h>
#include <halo/ops/causal_conv1d_backend.h>

#include "extents.h"

namespace halo {

CausalConv1dProblem CausalConv1dProblem::make(const char* op, const Shape& x_shape, const Shape& w_shape,
                                              int64_t dilation, bool silu) {
  if (x_shape.rank() != 3) fail(op, ": input expects 3 axes [B, C, L], got ", x_shape);
  const bool two = w_shape.rank() == 2, three = w_shape.rank() == 3 && w_shape[1] == 1;
  if (!(two || three) || w_shape[0] != x_shape[1]) {
    fail(op, ": weight expects [", x_shape[1], ", K] or [", x_shape[1], ", 1, K] (input ", x_shape, "), got ", w_shape);
  }
  if (w_shape.back() < 1) fail(op, ": weight expects at least one tap, got ", w_shape);
  if (dilation < 1) fail(op, ": dilation expects at least 1, got ", dilation);
  const int64_t state = extents::saturating_madd(w_shape.back() - 1, dilation, 0);
  if (state > extents::kLargest / 4 || x_shape[2] > extents::kLargest / 4) {
    fail(op, ": dilation times (kernel - 1) expects less than 2^61, got ", dilation, " times ", w_shape.back() - 1);
  }
  return {x_shape[0], x_shape[1], x_shape[2], w_shape.back(), dilation, silu};
}

namespace ops {
namespace {

/// Checked and dense, weight as [C, K].
CausalConv1dTensors checked(const char* op, const CausalConv1dProblem& p, const CausalConv1dTensors& t) {
  check_floating(
      op, {{"input", t.x}, {"weight", t.weight}, {"bias", t.bias, kOptional}, {"initial_state", t.state, kOptional}});
  check_shape(op, "input", t.x, p.x_shape());
  if (t.weight.numel() != p.channels * p.kernel) {
    fail(op, ": weight expects ", Shape{p.channels, p.kernel}, ", got ", t.weight.shape());
  }
  check_shape(op, "bias", t.bias, {p.channels});
  check_shape(op, "initial_state", t.state, p.state_shape());
  return {view::dense(t.x), view::dense(view::reshape(t.weight, {p.channels, p.kernel})),
          view::dense_or_undefined(t.bias), view::dense_or_undefined(t.state)};
}

}  // namespace

CausalConv1dResult causal_conv1d_forward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                                         bool want_final_state, const char* op) {
  const CausalConv1dTensors dense = checked(op, problem, operands);
  CausalConv1dResult result{.y = empty(problem.x_shape(), dense.x.options())};
  if (want_final_state) result.final_state = empty(problem.state_shape(), dense.x.options());
  run_backend<HalfKernels::Cuda>("causal_conv1d_forward", dense.x.device(), cpu::causal_conv1d_forward,
                                 cuda::causal_conv1d_forward, problem, dense, writes(result));
  return result;
}

CausalConv1dTensors causal_conv1d_backward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                                           const CausalConv1dResult& grads, const CausalConv1dWanted& wanted) {
  constexpr const char* op = "causal_conv1d_backward";
  const CausalConv1dTensors dense = checked(op, problem, operands);
  check_same_dtype_and_device(
      op,
      {{"input", dense.x}, {"grad_output", grads.y, kOptional}, {"grad_final_state", grads.final_state, kOptional}});
  check_shape(op, "grad_output", grads.y, problem.x_shape());
  check_shape(op, "grad_final_state", grads.final_state, problem.state_shape());
  const auto result = [&](bool want, const Shape& shape) { return want ? empty(shape, dense.x.options()) : Tensor(); };
  const CausalConv1dTensors into{result(wanted.x, problem.x_shape()),
                                 result(wanted.weight, {problem.channels, problem.kernel}),
                                 result(wanted.bias, {problem.channels}), result(wanted.state, problem.state_shape())};
  const CausalConv1dResult upstream{view::dense_or_undefined(grads.y), view::dense_or_undefined(grads.final_state)};
  run_backend<HalfKernels::Cuda>("causal_conv1d_backward", dense.x.device(), cpu::causal_conv1d_backward,
                                 cuda::causal_conv1d_backward, problem, dense, upstream, writes(into));
  CausalConv1dTensors shaped = into;
  if (wanted.weight) shaped.weight = view::reshape(into.weight, operands.weight.shape());
  return shaped;
}

}  // namespace ops
}  // namespace halo
