// What a backend must provide for elementwise functions of one argument. Operands of one shape, dtype and device, any
// strides.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/unary_functors.h>

namespace halo::cpu {
void unary(UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& y);
void unary_derivative(UnaryOp op, UnaryParams params, int order, const Tensor& g, const Tensor& s, const Tensor& out);
}  // namespace halo::cpu

namespace halo::cuda {
void unary(UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& y);
void unary_derivative(UnaryOp op, UnaryParams params, int order, const Tensor& g, const Tensor& s, const Tensor& out);
}  // namespace halo::cuda
