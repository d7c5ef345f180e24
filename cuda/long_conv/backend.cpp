// From tensors to kernels: what ops/long_conv_backend.h asks for.
#include <halo/core/copy.h>
#include <halo/cuda/long_conv/long_conv.h>
#include <halo/ops/backend.h>
#include <halo/ops/long_conv_backend.h>

#include "../runtime/device.h"
#include "direct.h"

namespace halo::cuda {
namespace {

/// Above it the transforms do not reach.
constexpr int64_t kLongestTransform = int64_t{1} << 21;

bool is_direct(const LongConvProblem& problem, LongConvMethod method) {
  return method == LongConvMethod::Direct || (method == LongConvMethod::Auto && problem.length > kLongestTransform);
}

void* data_or_null(const Tensor& t) { return t.defined() ? t.data() : nullptr; }

LongConvOperands pointers(const LongConvProblem& problem, const LongConvTensors& t, DType dtype) {
  return {.problem = problem,
          .dtype = dtype,
          .weight_dtype = dtype,
          .x = data_or_null(t.x),
          .weight = data_or_null(t.weight),
          .skip = data_or_null(t.skip),
          .gate_in = data_or_null(t.gate_in),
          .gate_out = data_or_null(t.gate_out)};
}

}  // namespace

void long_conv_forward(const LongConvProblem& problem, LongConvMethod method, const LongConvTensors& operands,
                       const Tensor& y) {
  if (y.numel() == 0) return;
  if (is_direct(problem, method)) {
    auto result = ops::writes(y);
    return ops::run_widened(direct_long_conv, problem, operands, result);
  }
  const LongConvOperands p = pointers(problem, operands, y.dtype());
  const DeviceScope scope(y.device());
  const Storage workspace(long_conv_forward_workspace(p), y.device());
  long_conv_forward(p, y.data(), workspace.data(), scope.stream());
}

void long_conv_backward(const LongConvProblem& problem, LongConvMethod method, const LongConvTensors& operands,
                        const Tensor& g, const LongConvTensors& grads) {
  if (g.numel() == 0) {  // nothing is summed
    for (const Tensor* sum : {&grads.weight, &grads.skip}) {
      if (sum->defined()) halo::fill(*sum, 0);
    }
    return;
  }
  if (is_direct(problem, method)) {
    auto results = ops::writes(grads);
    return ops::run_widened(direct_long_conv_backward, problem, operands, g, results);
  }
  const LongConvOperands p = pointers(problem, operands, g.dtype());
  const LongConvGrads results{.grad_output = g.data(),
                              .x = data_or_null(grads.x),
                              .weight = data_or_null(grads.weight),
                              .skip = data_or_null(grads.skip),
                              .gate_in = data_or_null(grads.gate_in),
                              .gate_out = data_or_null(grads.gate_out)};
  const DeviceScope scope(g.device());
  const Storage workspace(long_conv_backward_workspace(p, results), g.device());
  long_conv_backward(p, results, workspace.data(), scope.stream());
}

}  // namespace halo::cuda
