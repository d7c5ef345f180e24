#include <halo/autograd/arithmetic.h>
#include <halo/autograd/composed.h>
#include <halo/autograd/node.h>
#include <halo/autograd/norm.h>
#include <halo/autograd/residual_norm.h>
#include <halo/core/error.h>
#include <halo/ops/residual_norm.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;
using Grads = std::vector<Tensor>;

/// The gradients through differentiable pieces: `sum` is the node's own output.
Grads differentiable_backward(double eps, const Tensor& sum, const Tensor& weight, const Tensor& bias, const Grads& g) {
  const auto function = [eps](const Grads& in) {
    return Grads{in[0], layer_norm(in[0], {in[0].size(-1)}, in[1], in[2], eps)};
  };
  const Grads grads = autograd::composed_grads(function, {sum, weight, bias}, g);
  return {grads[0], sum_to(grads[0], {sum.size(-1)}), grads[0], grads[1], grads[2]};
}

}  // namespace

ResidualNormOutput residual_norm(const Tensor& input, const Tensor& input_bias, const Tensor& residual,
                                 const Tensor& weight, const Tensor& bias, double eps) {
  constexpr const char* op = "residual_norm";
  if (input.rank() == 0) fail(op, ": input expects at least one axis, got ", input.describe());
  if (residual.defined() && residual.shape() != input.shape()) {
    fail(op, ": residual expects shape ", input.shape(), ", got ", residual.shape());
  }
  const int64_t length = input.size(-1);
  const ResidualNormProblem problem{length == 0 ? 0 : input.numel() / length, length, eps};
  const ResidualNormResult result = ops::residual_norm_forward(problem, {input, input_bias, residual, weight, bias});
  record(op, {input, input_bias, residual, weight, bias}, {result.sum, result.y},
         [problem, sum = SavedTensor::output(result.sum), sw = SavedTensor(weight), sb = SavedTensor(bias),
          mean = result.mean, rstd = result.rstd](const Grads& g, const BackwardContext& context) {
           const Tensor x = sum.unpack(context), w = sw.unpack(context), b = sb.unpack(context);
           if (context.create_graph) return differentiable_backward(problem.eps, x, w, b, g);
           const auto grads = ops::residual_norm_backward(problem, {x, {}, mean, rstd}, w, g[0], g[1]);
           return Grads{grads.sum, grads.x_bias, grads.sum, grads.weight, grads.bias};
         });
  return {result.sum, result.y};
}

}  // namespace halo
