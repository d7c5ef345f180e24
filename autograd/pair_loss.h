// Differentiable losses between two tensors of one shape; gradients go to both. Reductions: none (that shape), mean,
// sum (one element). @throws ArgumentError where shapes, dtypes or devices differ, or the dtype is not floating.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/reduce.h>

namespace halo {

/// (input - target)^2.
Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::Mean);
/// |input - target|; gradient 0 where equal.
Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::Mean);
/// d^2 / 2 for |d| = |input - target| up to delta, delta (|d| - delta / 2) beyond. @throws ArgumentError unless delta >
/// 0.
Tensor huber_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::Mean, double delta = 1);
/// -target log(sigmoid(input)) - (1 - target) log(1 - sigmoid(input)); finite for any finite logit.
Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target,
                                        Reduction reduction = Reduction::Mean);

}  // namespace halo
