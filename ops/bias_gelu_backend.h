// What a backend must provide for bias_gelu. Operands are dense, of one dtype and on one device: x [rows, C], bias [C].
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/bias_gelu.h>

namespace halo::cpu {
void bias_gelu_forward(UnaryOp form, const Tensor& x, const Tensor& bias, const Tensor& y);
/// Writes all of `grads`; the sums over rows in a fixed order. grads.x may be g itself.
void bias_gelu_backward(UnaryOp form, const Tensor& g, const Tensor& x, const Tensor& bias, const BiasGeluGrads& grads);
}  // namespace halo::cpu

namespace halo::cuda {
void bias_gelu_forward(UnaryOp form, const Tensor& x, const Tensor& bias, const Tensor& y);
void bias_gelu_backward(UnaryOp form, const Tensor& g, const Tensor& x, const Tensor& bias, const BiasGeluGrads& grads);
}  // namespace halo::cuda
