// Differentiable residual addition and layer norm in one pass.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

struct ResidualNormOutput {
  Tensor sum, normed;
};

/// sum = input + input_bias + residual, normed = layer_norm(sum) over the last axis: what stands between two blocks of
/// a residual network. input, residual [..., C]; input_bias, weight, bias [C]; all but input may be undefined. Only
/// `sum` is kept for backward. @throws ArgumentError where shapes, dtypes or devices do not fit.
ResidualNormOutput residual_norm(const Tensor& input, const Tensor& input_bias, const Tensor& residual,
                                 const Tensor& weight = {}, const Tensor& bias = {}, double eps = 1e-5);

struct ResidualNormLinearOutput {
  Tensor sum, projected;
};

/// residual_norm, and its normed values times linear_weight^T [out, C]. The normed values are made again in backward
/// rather than kept. @throws ArgumentError as residual_norm.
ResidualNormLinearOutput residual_norm_linear(const Tensor& input, const Tensor& input_bias, const Tensor& residual,
                                              const Tensor& weight, const Tensor& bias, const Tensor& linear_weight,
                                              double eps = 1e-5);

}  // namespace halo
