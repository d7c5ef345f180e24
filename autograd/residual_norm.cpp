#include <halo/autograd/arithmetic.h>
#include <halo/autograd/composed.h>
#include <halo/autograd/matmul.h>
#include <halo/autograd/node.h>
#include <halo/autograd/norm.h>
#include <halo/autograd/residual_norm.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/matmul.h>
#include <halo/ops/norm.h>
#include <halo/ops/residual_norm.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;
using Grads = std::vector<Tensor>;

ResidualNormProblem checked_problem(const char* op, const Tensor& input, const Tensor& residual, double eps) {
  check_defined(op, {{"input", input}});
  if (input.rank() == 0) fail(op, ": input expects at least one axis, got ", input.describe());
  if (residual.defined() && residual.shape() != input.shape()) {
    fail(op, ": residual expects shape ", input.shape(), ", got ", residual.shape());
  }
  const int64_t length = input.size(-1);
  return {length == 0 ? 0 : input.numel() / length, length, eps};
}

/// What backward of both functions keeps: the sum, which is the node's own output 0, and what was made from it.
struct Saved {
  ResidualNormProblem problem;
  SavedTensor sum, weight, bias, mean, rstd;

  Saved(const ResidualNormProblem& p, const ResidualNormResult& result, const Tensor& w, const Tensor& b)
      : problem(p), sum(SavedTensor::output(result.sum)), weight(w), bias(b), mean(result.mean), rstd(result.rstd) {}

  /// The gradients of the five operands for those of sum and normed values. `x` is the sum.
  Grads gradients(const Tensor& x, const Tensor& g_sum, const Tensor& g_normed, const BackwardContext& context) const {
    const auto grads = ops::residual_norm_backward(problem, {x, {}, mean.unpack(context), rstd.unpack(context)},
                                                   weight.unpack(context), g_sum, g_normed);
    return {grads.sum, grads.x_bias, grads.sum, grads.weight, grads.bias};
  }
  /// The same through differentiable pieces, followed by that of `linear_weight` where it is defined.
  Grads differentiable(const Grads& g, const Tensor& linear_weight, const BackwardContext& context) const {
    const Tensor x = sum.unpack(context);
    const auto function = [eps = problem.eps](const Grads& in) {
      const Tensor normed = layer_norm(in[0], {in[0].size(-1)}, in[1], in[2], eps);
      return Grads{in[0], in[3].defined() ? linear(normed, in[3]) : normed};
    };
    const Grads grads =
        autograd::composed_grads(function, {x, weight.unpack(context), bias.unpack(context), linear_weight}, g);
    Grads result{grads[0], sum_to(grads[0], {x.size(-1)}), grads[0], grads[1], grads[2]};
    if (linear_weight.defined()) result.push_back(grads[3]);
    return result;
  }
};

}  // namespace

ResidualNormOutput residual_norm(const Tensor& input, const Tensor& input_bias, const Tensor& residual,
                                 const Tensor& weight, const Tensor& bias, double eps) {
  const ResidualNormProblem problem = checked_problem("residual_norm", input, residual, eps);
  const ResidualNormResult result = ops::residual_norm_forward(problem, {input, input_bias, residual, weight, bias});
  record("residual_norm", {input, input_bias, residual, weight, bias}, {result.sum, result.y},
         [saved = Saved(problem, result, weight, bias)](const Grads& g, const BackwardContext& context) {
           if (context.create_graph) return saved.differentiable(g, {}, context);
           return saved.gradients(saved.sum.unpack(context), g[0], g[1], context);
         });
  return {result.sum, result.y};
}

ResidualNormLinearOutput residual_norm_linear(const Tensor& input, const Tensor& input_bias, const Tensor& residual,
                                              const Tensor& weight, const Tensor& bias, const Tensor& linear_weight,
                                              double eps) {
  constexpr const char* op = "residual_norm_linear";
  const ResidualNormProblem problem = checked_problem(op, input, residual, eps);
  check_floating(op, {{"input", input}, {"linear_weight", linear_weight}});
  if (linear_weight.rank() != 2 || linear_weight.size(1) != problem.length) {
    fail(op, ": linear_weight expects [out, ", problem.length, "], got ", linear_weight.shape());
  }
  const ResidualNormResult result =
      ops::residual_norm_forward(problem, {input, input_bias, residual, weight, bias}, op);
  const Shape rows{problem.rows, problem.length};
  Shape shape = input.shape();
  shape[shape.rank() - 1] = linear_weight.size(0);
  const Tensor projected = view::reshape(ops::linear(view::reshape(result.y, rows), linear_weight, {}), shape);
  record(op, {input, input_bias, residual, weight, bias, linear_weight}, {result.sum, projected},
         [rows, saved = Saved(problem, result, weight, bias), sw = SavedTensor(linear_weight)](
             const Grads& g, const BackwardContext& context) {
           const Tensor w = sw.unpack(context);
           if (context.create_graph) return saved.differentiable(g, w, context);
           const Tensor x = saved.sum.unpack(context), up = view::reshape(g[1], {rows[0], w.size(0)});
           Tensor w_grad;
           if (context.needs(5)) {
             const RowNormProblem norm{.rows = rows[0], .channels_per_row = rows[1], .eps = saved.problem.eps};
             const Tensor normed =
                 ops::row_norm_forward(norm, x, saved.weight.unpack(context), saved.bias.unpack(context)).y;
             w_grad = ops::matmul(view::transpose(up, 0, 1), view::reshape(normed, rows));
           }
           Grads grads = saved.gradients(x, g[0], ops::matmul(up, w), context);
           grads.push_back(w_grad);
           return grads;
         });
  return {result.sum, projected};
}

}  // namespace halo
