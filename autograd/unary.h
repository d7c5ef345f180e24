// Differentiable elementwise functions of one argument: x of any shape, the result of the same.
// @throws ArgumentError for a dtype that is not floating.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/activation.h>

namespace halo {

Tensor abs(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
/// log(1 + exp(x)).
Tensor softplus(const Tensor& x);
/// max(x, 0); NaN stays NaN; gradient 0 at 0.
Tensor relu(const Tensor& x);
Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01);
enum class GeluForm { Exact, Tanh };
/// x Phi(x), or its tanh approximation.
Tensor gelu(const Tensor& x, GeluForm form = GeluForm::Exact);
/// x sigmoid(x).
Tensor silu(const Tensor& x);
/// min(max(x, low), high); NaN stays NaN; gradient 1 on the bounds. @throws ArgumentError unless low <= high.
Tensor clamp(const Tensor& x, double low, double high);
/// x to a constant power; NaN for a negative x and a broken exponent.
Tensor pow(const Tensor& x, double exponent);
Tensor reciprocal(const Tensor& x);
/// x * factor and x + summand, for numbers.
Tensor scale(const Tensor& x, double factor);
Tensor shift(const Tensor& x, double summand);
/// The activation that kernels can fuse, as a function of its own.
Tensor activate(const Tensor& x, const Activation& activation);
/// Whether the result of an activation tells its derivative, so that its argument need not be kept.
bool has_derivative_of_result(const Activation& activation);
/// The gradient of the argument of such an activation from that of its result `y`.
Tensor activation_backward(const Activation& activation, const Tensor& g, const Tensor& y);

}  // namespace halo
