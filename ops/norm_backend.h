// What a backend must provide for normalisation. Operands are dense, of one dtype and on one device, sizes checked.
// weight and bias may be undefined (1 and 0). Statistics without cancellation: two passes or the like, never
// E[x^2] - E[x]^2. Sums in a fixed order.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/norm.h>

namespace halo::cpu {
/// x, y [N, C, ...], everything else [C]. Writes y, mean and rstd. Training (problem.count() is 0 or at least 2):
/// statistics of x; running_mean and running_var, where defined, are updated with the mean and the variance times
/// n / (n - 1); with count() 0 they stay as they are and mean and rstd become 0. Evaluation: mean and rstd from the
/// running values, which are not changed.
void batch_norm_forward(const BatchNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& running_mean, const Tensor& running_var, const NormResult& result);
/// Writes those of `grads` that are defined: bias = sum g, weight = sum g xhat, and (w = weight)
/// x = w rstd (g - (sum g + xhat sum (g xhat)) / n) in training, w rstd g in evaluation. In training `mean` was rounded
/// to the tensor's type, which shows where it is large against the deviation: the sum of x - mean tells by how much.
void batch_norm_backward(const BatchNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                         const Tensor& mean, const Tensor& rstd, const NormGrads& grads);

/// Writes y, mean and rstd.
void row_norm_forward(const RowNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const NormResult& result);
/// Writes those of `grads` that are defined: with h = g * weight and means over the row,
/// x = rstd (h - mean h - xhat mean (h xhat)); bias and weight = sums of g and g xhat over everything of a channel, 0
/// where there is nothing. The rounding of `mean` is corrected as above.
void row_norm_backward(const RowNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                       const Tensor& mean, const Tensor& rstd, const NormGrads& grads);
}  // namespace halo::cpu

namespace halo::cuda {
void batch_norm_forward(const BatchNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& running_mean, const Tensor& running_var, const NormResult& result);
void batch_norm_backward(const BatchNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                         const Tensor& mean, const Tensor& rstd, const NormGrads& grads);
void row_norm_forward(const RowNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const NormResult& result);
void row_norm_backward(const RowNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                       const Tensor& mean, const Tensor& rstd, const NormGrads& grads);
}  // namespace halo::cuda
