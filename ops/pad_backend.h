// What a backend must provide for padding. Operands dense, seen as [outer, input...] and [outer, output...] as the
// problem says; every element of the last argument is written.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/pad.h>

namespace halo::cpu {
/// Any dtype. Output position o takes input position pad_source(...) of each axis, or `value` outside (Constant).
void pad(const PadProblem& problem, const Scalar& value, const Tensor& x, const Tensor& y);
/// The adjoint, floating dtypes: x[i] = sum of g over the output positions that took i, in a fixed order.
void pad_backward(const PadProblem& problem, const Tensor& g, const Tensor& x);
}  // namespace halo::cpu

namespace halo::cuda {
void pad(const PadProblem& problem, const Scalar& value, const Tensor& x, const Tensor& y);
void pad_backward(const PadProblem& problem, const Tensor& g, const Tensor& x);
}  // namespace halo::cuda
