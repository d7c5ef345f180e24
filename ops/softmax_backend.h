// What a backend must provide for softmax: operands dense, of one shape and dtype, any axis `dim`.
#pragma once

#include <halo/core/tensor.h>

namespace halo::cpu {
/// y = softmax(x) or log_softmax(x) along `dim`; the largest element is subtracted first.
void softmax(bool log, const Tensor& x, int dim, const Tensor& y);
/// dx = y (g - sum(g y)); for the logarithm dx = g - exp(y) sum(g).
void softmax_backward(bool log, const Tensor& g, const Tensor& y, int dim, const Tensor& dx);
}  // namespace halo::cpu

namespace halo::cuda {
void softmax(bool log, const Tensor& x, int dim, const Tensor& y);
void softmax_backward(bool log, const Tensor& g, const Tensor& y, int dim, const Tensor& dx);
}  // namespace halo::cuda
