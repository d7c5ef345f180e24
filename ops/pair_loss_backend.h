// What a backend must provide for losses between two tensors of one shape and dtype, any strides.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/pair_loss.h>

namespace halo::cpu {
/// out = f(x, t) elementwise (Reduction::None, out of x's shape) or its mean or sum (out of one element), added up in a
/// fixed order.
void pair_loss(PairLoss op, double delta, Reduction reduction, const Tensor& x, const Tensor& t, const Tensor& out);
/// out = g df/dx, or g df/dt where `to_target`; g of x's shape, often expanded from one element. Where g is 0, 0.
void pair_loss_backward(PairLoss op, double delta, bool to_target, const Tensor& g, const Tensor& x, const Tensor& t,
                        const Tensor& out);
}  // namespace halo::cpu

namespace halo::cuda {
void pair_loss(PairLoss op, double delta, Reduction reduction, const Tensor& x, const Tensor& t, const Tensor& out);
void pair_loss_backward(PairLoss op, double delta, bool to_target, const Tensor& g, const Tensor& x, const Tensor& t,
                        const Tensor& out);
}  // namespace halo::cuda
