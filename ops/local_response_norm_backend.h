// What a backend must provide for local response normalisation. Operands are dense [N, C, ...], of one dtype and on one
// device; every element of the last argument is written.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/local_response_norm.h>

namespace halo::cpu {
void local_response_norm_forward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& y);
/// Recomputes the sums of squares; formula at LocalResponseNorm.
void local_response_norm_backward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& g, const Tensor& dx);
}  // namespace halo::cpu

namespace halo::cuda {
void local_response_norm_forward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& y);
void local_response_norm_backward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& g, const Tensor& dx);
}  // namespace halo::cuda
