#include <halo/autograd/arithmetic.h>
#include <halo/autograd/checkpoint.h>
#include <halo/autograd/node.h>
#include <halo/autograd/norm.h>
#include <halo/autograd/unary.h>
#include <halo/core/error.h>
#include <halo/ops/norm.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;
using Grads = std::vector<Tensor>;

/// What is normalised, seen with axes of its own for everything: statistics run over `dims`, parameters have
/// `parameters` as their shape.
struct Layout {
  Shape seen, dims, parameters;
};

/// The gradients of x, weight and bias from differentiable pieces: a graph of the gradient goes through them.
/// `constant_mean` and `constant_rstd` are given in evaluation, where they do not depend on x.
Grads differentiable_backward(const Layout& layout, double eps, const Tensor& grad, const Tensor& input,
                              const Tensor& weight, const BackwardContext& context, const Tensor& constant_mean = {},
                              const Tensor& constant_rstd = {}) {
  const Tensor g = grad.reshape(layout.seen), x = input.reshape(layout.seen);
  const bool fixed = constant_mean.defined();
  const Tensor centered = x - (fixed ? constant_mean.reshape(layout.parameters) : mean(x, layout.dims, true));
  const Tensor rstd =
      fixed ? constant_rstd.reshape(layout.parameters) : pow(mean(centered * centered, layout.dims, true) + eps, -0.5);
  const Tensor xhat = centered * rstd;
  Grads grads(3);
  if (context.needs(0)) {
    Tensor h = weight.defined() ? g * weight.reshape(layout.parameters) : g;
    if (!fixed) h = h - mean(h, layout.dims, true) - xhat * mean(h * xhat, layout.dims, true);
    grads[0] = (rstd * h).reshape(input.shape());
  }
  if (context.needs(1)) grads[1] = sum_to(g * xhat, layout.parameters).reshape(weight.shape());
  if (context.needs(2)) grads[2] = sum_to(g, layout.parameters);  // the caller knows the shape
  return grads;
}

NormWanted wanted(const BackwardContext& context) { return {context.needs(0), context.needs(1), context.needs(2)}; }

/// Backward results in the shapes of the inputs.
Grads shaped(const NormGrads& grads, const Shape& parameters) {
  return {grads.x, grads.weight.defined() ? grads.weight.reshape(parameters) : Tensor(),
          grads.bias.defined() ? grads.bias.reshape(parameters) : Tensor()};
}

int64_t positions_of(const Shape& shape) {
  int64_t positions = 1;
  for (int i = 2; i < shape.rank(); ++i) positions *= shape[i];
  return positions;
}

/// Layer, group and instance normalisation; `parameters` is the shape of weight and bias.
Tensor row_norm(const char* op, const RowNormProblem& problem, const Shape& parameters, const Tensor& input,
                const Tensor& weight, const Tensor& bias) {
  check_floating(op, {{"input", input}, {"weight", weight, kOptional}, {"bias", bias, kOptional}});
  check_shape(op, "weight", weight, parameters);
  check_shape(op, "bias", bias, parameters);
  const NormResult result = ops::row_norm_forward(problem, input, weight, bias);
  return record(op, {input, weight, bias}, result.y,
                [=, sm = SavedTensor(result.mean), sr = SavedTensor(result.rstd), sx = SavedTensor(input),
                 sw = SavedTensor(weight)](const Tensor& g, const BackwardContext& context) {
                  const Tensor x = sx.unpack(context), w = sw.unpack(context);
                  if (!context.create_graph || x.numel() == 0) {
                    const Tensor mean = sm.unpack(context), rstd = sr.unpack(context);
                    return shaped(ops::row_norm_backward(problem, g, x, w, mean, rstd, wanted(context)), parameters);
                  }
                  const RowNormProblem& p = problem;
                  Grads grads = differentiable_backward({{p.rows / p.groups, p.groups, p.channels_per_row, p.positions},
                                                         {2, 3},
                                                         {1, p.groups, p.channels_per_row, 1}},
                                                        p.eps, g, x, w, context);
                  if (grads[2].defined()) grads[2] = grads[2].reshape(parameters);
                  return grads;
                });
}

}  // namespace

Tensor batch_norm(const Tensor& input, const Tensor& running_mean, const Tensor& running_var, const Tensor& weight,
                  const Tensor& bias, const BatchNormOptions& options) {
  constexpr const char* op = "batch_norm";
  check_defined(op, {{"input", input}});
  if (input.rank() < 2) fail(op, ": input expects at least 2 axes [N, C, ...], got ", input.shape());
  const Shape parameters{input.size(1)};
  check_shape(op, "weight", weight, parameters);
  check_shape(op, "bias", bias, parameters);
  check_shape(op, "running_mean", running_mean, parameters);
  check_shape(op, "running_var", running_var, parameters);
  if (options.batches_before < 0) fail(op, ": batches_before expects 0 or more, got ", options.batches_before);
  const BatchNormProblem problem{
      .batch = input.size(0),
      .channels = input.size(1),
      .positions = positions_of(input.shape()),
      .training = options.training,
      .eps = options.eps,
      .momentum = options.momentum.value_or(1.0 / static_cast<double>(options.batches_before + 1))};
  // Where a checkpoint runs this again, the running statistics have had this batch.
  const bool seen = options.training && is_recomputing();
  const NormResult result = ops::batch_norm_forward(problem, input, weight, bias, seen ? Tensor() : running_mean,
                                                    seen ? Tensor() : running_var);
  return record(op, {input, weight, bias}, result.y,
                [problem, parameters, sm = SavedTensor(result.mean), sr = SavedTensor(result.rstd),
                 sx = SavedTensor(input), sw = SavedTensor(weight)](const Tensor& g, const BackwardContext& context) {
                  const Tensor x = sx.unpack(context), w = sw.unpack(context), mean = sm.unpack(context),
                               rstd = sr.unpack(context);
                  if (!context.create_graph || x.numel() == 0) {
                    return shaped(ops::batch_norm_backward(problem, g, x, w, mean, rstd, wanted(context)), parameters);
                  }
                  const BatchNormProblem& p = problem;
                  Grads grads = differentiable_backward(
                      {{p.batch, p.channels, p.positions}, {0, 2}, {1, p.channels, 1}}, p.eps, g, x, w, context,
                      p.training ? Tensor() : mean.to(x.dtype()), p.training ? Tensor() : rstd.to(x.dtype()));
                  if (grads[2].defined()) grads[2] = grads[2].reshape(parameters);
                  return grads;
                });
}

Tensor layer_norm(const Tensor& input, const Shape& normalized_shape, const Tensor& weight, const Tensor& bias,
                  double eps) {
  constexpr const char* op = "layer_norm";
  check_defined(op, {{"input", input}});
  const int added = input.rank() - normalized_shape.rank();
  bool fits = added >= 0 && !normalized_shape.empty();
  int64_t rows = 1;
  for (int i = 0; fits && i < input.rank(); ++i) {
    if (i < added) {
      rows *= input.shape()[i];
    } else {
      fits = input.shape()[i] == normalized_shape[i - added];
    }
  }
  if (!fits) {
    fail(op, ": normalized_shape expects the last extents of input ", input.shape(), ", got ", normalized_shape);
  }
  const RowNormProblem problem{.rows = rows, .channels_per_row = normalized_shape.numel(), .eps = eps};
  return row_norm(op, problem, normalized_shape, input, weight, bias);
}

namespace {

Tensor group_norm(const char* op, int64_t groups, const Tensor& input, const Tensor& weight, const Tensor& bias,
                  double eps) {
  const RowNormProblem problem{.rows = input.size(0) * groups,
                               .groups = groups,
                               .channels_per_row = groups == 0 ? 0 : input.size(1) / groups,
                               .positions = positions_of(input.shape()),
                               .eps = eps};
  return row_norm(op, problem, {input.size(1)}, input, weight, bias);
}

}  // namespace

Tensor group_norm(const Tensor& input, int64_t num_groups, const Tensor& weight, const Tensor& bias, double eps) {
  constexpr const char* op = "group_norm";
  check_defined(op, {{"input", input}});
  if (input.rank() < 2) fail(op, ": input expects at least 2 axes [N, C, ...], got ", input.shape());
  if (num_groups < 1 || input.size(1) % num_groups != 0) {
    fail(op, ": num_groups expects a divisor of the ", input.size(1), " channels of input ", input.shape(), ", got ",
         num_groups);
  }
  return group_norm(op, num_groups, input, weight, bias, eps);
}

Tensor instance_norm(const Tensor& input, const Tensor& weight, const Tensor& bias, double eps) {
  constexpr const char* op = "instance_norm";
  check_defined(op, {{"input", input}});
  if (input.rank() < 3) fail(op, ": input expects at least 3 axes [N, C, spatial...], got ", input.shape());
  return group_norm(op, input.size(1), input, weight, bias, eps);
}

}  // namespace halo
