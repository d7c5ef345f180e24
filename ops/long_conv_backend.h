// What a backend must provide for long convolution. Operands are dense, of one dtype and on one device, shapes checked;
// no two rows share a transform, so that a row's result depends on that row alone.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/long_conv.h>
#include <halo/ops/long_conv_problem.h>
#include <halo/ops/weight_use.h>

namespace halo::cpu {
/// Writes all of y. skip and gates may be undefined.
void long_conv_forward(const LongConvProblem& problem, LongConvMethod method, const LongConvTensors& operands,
                       WeightUse use, const Tensor& y);
/// Writes those of `grads` that are defined; taps that reach no input get weight gradient 0. An operand that none of
/// them depends on may be undefined (the gradient of x needs no x, that of skip no skip).
void long_conv_backward(const LongConvProblem& problem, LongConvMethod method, const LongConvTensors& operands,
                        const Tensor& g, const LongConvTensors& grads);
}  // namespace halo::cpu

namespace halo::cuda {
void long_conv_forward(const LongConvProblem& problem, LongConvMethod method, const LongConvTensors& operands,
                       WeightUse use, const Tensor& y);
void long_conv_backward(const LongConvProblem& problem, LongConvMethod method, const LongConvTensors& operands,
                        const Tensor& g, const LongConvTensors& grads);
}  // namespace halo::cuda
