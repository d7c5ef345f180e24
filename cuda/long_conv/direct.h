// Long convolution by direct sums: an output depends on nothing but the inputs under its taps.
#pragma once

#include <halo/ops/long_conv.h>

namespace halo::cuda {

/// As ops/long_conv_backend.h says; float32 and float64.
void direct_long_conv(const LongConvProblem& problem, const LongConvTensors& operands, const Tensor& y);
void direct_long_conv_backward(const LongConvProblem& problem, const LongConvTensors& operands, const Tensor& g,
                               const LongConvTensors& grads);

}  // namespace halo::cuda
