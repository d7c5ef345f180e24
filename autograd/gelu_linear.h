// Differentiable second half of a network with one hidden layer.
#pragma once

#include <halo/autograd/unary.h>

namespace halo {

/// gelu(input + bias) weight^T. input [..., in], bias [in], weight [out, in]. The activated values are made again in
/// backward rather than kept.
Tensor gelu_linear(const Tensor& input, const Tensor& bias, const Tensor& weight, GeluForm form = GeluForm::Exact);

}  // namespace halo
