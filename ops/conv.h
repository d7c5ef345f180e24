// Convolution: the three contractions of ConvProblem's form, on tensors. Nothing is recorded; the differentiable
// functions are in autograd/conv.h.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/activation.h>
#include <halo/ops/conv_problem.h>
#include <halo/ops/weight_use.h>

namespace halo::ops {

/// y = activation(x correlated with w + bias). x, w as in `problem`; bias [out_channels] or undefined.
/// @throws ArgumentError where a shape is not the problem's, or dtypes or devices differ.
Tensor conv_forward(const ConvProblem& problem, const Tensor& x, const Tensor& w, const Tensor& bias = {},
                    const Activation& activation = {}, WeightUse use = WeightUse::Once);

/// dT/dx for the upstream gradient g; with `bias` [in_channels] added, the forward of a transposed convolution.
Tensor conv_backward_input(const ConvProblem& problem, const Tensor& g, const Tensor& w, const Tensor& bias = {},
                           WeightUse use = WeightUse::Once);

/// dT/dw.
Tensor conv_backward_weight(const ConvProblem& problem, const Tensor& x, const Tensor& g);

/// Sum of g [N, C, spatial...] over everything but the channels: the gradient of a bias.
Tensor sum_per_channel(const Tensor& g);

}  // namespace halo::ops
