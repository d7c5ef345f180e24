// What a backend must provide for losses over classes. x dense [N, C, d...], target dense int64 [N, d...], weight dense
// [C] or undefined; loss, counted and g dense, of the target's shape and x's dtype; lse likewise but float64, since a
// rounding of a large lse would be a relative error of every probability.
//
// With q[c] = (1 - smoothing) weight[target] (c == target) + smoothing / C weight[c], the loss of a position is the sum
// of q[c] (lse - x[c]), where lse = log(sum(exp(x[c]))), or 0 where x holds log probabilities already; terms with q[c]
// = 0 are left out. A position whose target is ignore_index has loss, lse, counted and gradient exactly 0, whatever x
// and g hold. Another target outside [0, C): the CPU throws, naming position and label; a CUDA kernel reads nothing for
// it and makes loss and gradient NaN.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/cross_entropy.h>

namespace halo::cpu {
/// Writes the loss of each position, its lse (for backward), and counted = weight[target].
void cross_entropy(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                   const Tensor& weight, const Tensor& loss, const Tensor& lse, const Tensor& counted);
/// dx[c] = g (sum(q) p[c] - q[c]) with p = exp(x - lse), or 0 where x holds log probabilities.
void cross_entropy_backward(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                            const Tensor& weight, const Tensor& lse, const Tensor& g, const Tensor& dx);
/// See ops/cross_entropy.h; operands dense, sums in float64, in a fixed order.
void mean_loss(const Tensor& loss, const Tensor& counted, const Tensor& mean, const Tensor& share);
}  // namespace halo::cpu

namespace halo::cuda {
void cross_entropy(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                   const Tensor& weight, const Tensor& loss, const Tensor& lse, const Tensor& counted);
void cross_entropy_backward(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                            const Tensor& weight, const Tensor& lse, const Tensor& g, const Tensor& dx);
void mean_loss(const Tensor& loss, const Tensor& counted, const Tensor& mean, const Tensor& share);
}  // namespace halo::cuda
