#include <halo/autograd/conv.h>
#include <halo/autograd/node.h>
#include <halo/autograd/unary.h>
#include <halo/core/error.h>
#include <halo/ops/conv.h>

namespace halo {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;

// The derivatives of each contraction are again among the three, so that they close under differentiation.

namespace {
/// The gradient of a per-channel bias, differentiable: summing is linear, and its adjoint spreads.
Tensor sum_per_channel(const Tensor& g) {
  const Shape shape = g.shape();
  return record("sum_per_channel", {g}, ops::sum_per_channel(g), [shape](const Tensor& grad, const BackwardContext&) {
    Shape spread = Shape::filled(shape.rank(), 1);
    spread[1] = shape[1];
    return std::vector<Tensor>{grad.reshape(spread).expand(shape)};
  });
}

/// y = activation(x correlated with w + bias) in one pass; the activation's derivative must follow from y. Backward
/// multiplies by it in a pass of its own, three times the size of y in traffic. Inside the loading of the three passes
/// that follow it would cost as much, since each would read y beside the gradient, and no copy engine could load them.
Tensor forward(const ConvProblem& problem, const Tensor& x, const Tensor& w, const Tensor& bias,
               const Activation& activation, WeightUse use) {
  const Tensor y = ops::conv_forward(problem, x, w, bias, activation, use);
  const auto sy = activation.kind == ActivationKind::None ? SavedTensor() : SavedTensor::output(y);
  return record("conv_forward", {x, w, bias}, y,
                [problem, activation, sy, sx = SavedTensor(x), sw = SavedTensor(w)](const Tensor& upstream,
                                                                                    const BackwardContext& context) {
                  const Tensor g = activation_backward(activation, upstream, sy.unpack(context));
                  std::vector<Tensor> grads(3);
                  if (context.needs(0)) grads[0] = conv_backward_input(problem, g, sw.unpack(context));
                  if (context.needs(1)) grads[1] = conv_backward_weight(problem, sx.unpack(context), g);
                  if (context.needs(2)) grads[2] = sum_per_channel(g);
                  return grads;
                });
}

Tensor backward_input(const ConvProblem& problem, const Tensor& g, const Tensor& w, const Tensor& bias, WeightUse use) {
  return record("conv_backward_input", {g, w, bias}, ops::conv_backward_input(problem, g, w, bias, use),
                [problem, sg = SavedTensor(g), sw = SavedTensor(w)](const Tensor& x, const BackwardContext& context) {
                  std::vector<Tensor> grads(3);
                  if (context.needs(0)) grads[0] = conv_forward(problem, x, sw.unpack(context));
                  if (context.needs(1)) grads[1] = conv_backward_weight(problem, x, sg.unpack(context));
                  if (context.needs(2)) grads[2] = sum_per_channel(x);
                  return grads;
                });
}

}  // namespace

// Backward calls these two, so that a weight which trains is not taken for one that stays.
Tensor conv_forward(const ConvProblem& problem, const Tensor& x, const Tensor& w, const Tensor& bias) {
  return forward(problem, x, w, bias, {}, WeightUse::Once);
}

Tensor conv_backward_input(const ConvProblem& problem, const Tensor& g, const Tensor& w, const Tensor& bias) {
  return backward_input(problem, g, w, bias, WeightUse::Once);
}

Tensor conv_backward_weight(const ConvProblem& problem, const Tensor& x, const Tensor& g) {
  return record("conv_backward_weight", {x, g}, ops::conv_backward_weight(problem, x, g),
                [problem, sx = SavedTensor(x), sg = SavedTensor(g)](const Tensor& w, const BackwardContext& context) {
                  std::vector<Tensor> grads(2);
                  if (context.needs(0)) grads[0] = conv_backward_input(problem, sg.unpack(context), w);
                  if (context.needs(1)) grads[1] = conv_forward(problem, sx.unpack(context), w);
                  return grads;
                });
}

namespace {

void check_rank(const char* op, const Tensor& input, int rank) {
  if (input.rank() != rank + 2) fail(op, ": input expects ", rank + 2, " axes [N, C, spatial...], got ", input.shape());
}

Tensor conv(const char* op, int rank, const Tensor& input, const Tensor& weight, const Tensor& bias,
            const ConvOptions& options, const Activation& activation) {
  check_floating(op, {{"input", input}, {"weight", weight}, {"bias", bias, kOptional}});
  check_rank(op, input, rank);
  const auto problem = ConvProblem::conv(op, input.shape(), weight.shape(), options);
  check_shape(op, "bias", bias, {problem.out_channels});
  if (autograd::should_record({input, weight, bias}) && !has_derivative_of_result(activation))
    return activate(conv_forward(problem, input, weight, bias), activation);
  return forward(problem, input, weight, bias, activation, autograd::weight_use(weight));
}

Tensor conv_transpose(const char* op, int rank, const Tensor& input, const Tensor& weight, const Tensor& bias,
                      const ConvOptions& options) {
  check_floating(op, {{"input", input}, {"weight", weight}, {"bias", bias, kOptional}});
  check_rank(op, input, rank);
  const auto problem = ConvProblem::transposed(op, input.shape(), weight.shape(), options);
  check_shape(op, "bias", bias, {problem.in_channels});
  return backward_input(problem, input, weight, bias, autograd::weight_use(weight));
}

}  // namespace

Tensor conv1d(const Tensor& input, const Tensor& weight, const Tensor& bias, const ConvOptions& options,
              const Activation& activation) {
  return conv("conv1d", 1, input, weight, bias, options, activation);
}
Tensor conv2d(const Tensor& input, const Tensor& weight, const Tensor& bias, const ConvOptions& options,
              const Activation& activation) {
  return conv("conv2d", 2, input, weight, bias, options, activation);
}
Tensor conv3d(const Tensor& input, const Tensor& weight, const Tensor& bias, const ConvOptions& options,
              const Activation& activation) {
  return conv("conv3d", 3, input, weight, bias, options, activation);
}
Tensor conv_transpose1d(const Tensor& input, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  return conv_transpose("conv_transpose1d", 1, input, weight, bias, options);
}
Tensor conv_transpose2d(const Tensor& input, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  return conv_transpose("conv_transpose2d", 2, input, weight, bias, options);
}
Tensor conv_transpose3d(const Tensor& input, const Tensor& weight, const Tensor& bias, const ConvOptions& options) {
  return conv_transpose("conv_transpose3d", 3, input, weight, bias, options);
}

}  // namespace halo
