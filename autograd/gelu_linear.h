// Differentiable second half of a network with one hidden layer.
#pragma once

#include <halo/autograd/unary.h>

namespace halo {

/// gelu(input + bias) weight^T: [..., out]. input [..., in], bias [in], weight [out, in]. The activated values are made
/// again in backward rather than kept. @throws ArgumentError where shapes, dtypes or devices do not fit.
Tensor gelu_linear(const Tensor& input, const Tensor& bias, const Tensor& weight, GeluForm form = GeluForm::Exact);

}  // namespace halo
