// Differentiable matrix products of floating dtypes. @throws ArgumentError with both shapes where they do not fit, and
// where dtypes or devices differ.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

/// a [batch..., m, k] times b [batch..., k, n]; batch axes broadcast. One axis alone is a row on the left and a column
/// on the right, and is dropped from the result: two of them give their dot product.
Tensor matmul(const Tensor& a, const Tensor& b);

/// input [..., in] times weight^T + bias: weight [out, in], bias [out] or undefined; result [..., out].
Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias = {});

}  // namespace halo
