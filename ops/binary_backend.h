// What a backend must provide for elementwise functions of two arguments: operands already broadcast to one shape, any
// strides, one device.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/binary.h>

namespace halo::cpu {
void binary(BinaryOp op, const Tensor& a, const Tensor& b, const Tensor& out);
void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out);
}  // namespace halo::cpu

namespace halo::cuda {
void binary(BinaryOp op, const Tensor& a, const Tensor& b, const Tensor& out);
void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out);
}  // namespace halo::cuda
