// Differentiable convolutions. Names, argument order and weight layouts are PyTorch's.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/activation.h>
#include <halo/ops/conv_problem.h>

namespace halo {

/// y = conv(x, w) + bias: x [N, C, spatial...], w [K, C/groups, kernel...], bias [K] or undefined; y [N, K, spatial...]
/// with spatial extents floor((L + before + after - dilation (k - 1) - 1) / stride) + 1. `activation` is applied to y
/// in the same pass. @throws ArgumentError naming the argument that does not fit.
Tensor conv1d(const Tensor& input, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {},
              const Activation& activation = {});
Tensor conv2d(const Tensor& input, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {},
              const Activation& activation = {});
Tensor conv3d(const Tensor& input, const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {},
              const Activation& activation = {});

/// Transposed convolution: x [N, Cin, spatial...], w [Cin, Cout/groups, kernel...], bias [Cout]; spatial extents
/// (L - 1) stride - before - after + dilation (k - 1) + output_padding + 1. @throws ArgumentError naming the argument
/// that does not fit.
Tensor conv_transpose1d(const Tensor& input, const Tensor& weight, const Tensor& bias = {},
                        const ConvOptions& options = {});
Tensor conv_transpose2d(const Tensor& input, const Tensor& weight, const Tensor& bias = {},
                        const ConvOptions& options = {});
Tensor conv_transpose3d(const Tensor& input, const Tensor& weight, const Tensor& bias = {},
                        const ConvOptions& options = {});

/// The three contractions of ConvProblem's form as differentiable functions, for work on the form itself.
/// @throws ArgumentError where a shape is not the problem's.
Tensor conv_forward(const ConvProblem& problem, const Tensor& x, const Tensor& w, const Tensor& bias = {});
Tensor conv_backward_input(const ConvProblem& problem, const Tensor& g, const Tensor& w, const Tensor& bias = {});
Tensor conv_backward_weight(const ConvProblem& problem, const Tensor& x, const Tensor& g);

}  // namespace halo
