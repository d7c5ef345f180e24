// Causal depthwise convolution of half types by whole packs; host side.
#pragma once

#include <halo/ops/causal_conv1d_backend.h>

namespace halo::cuda::causal {

/// Two to four neighbouring taps of half types, and rows that are not short; they may have any length and begin
/// anywhere.
bool goes_by_packs(const CausalConv1dProblem& problem, DType dtype);

/// Writes y. All that goes_by_packs().
void packs_forward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands, const Tensor& y);
/// Writes those of `into` that are defined. grads.y is defined.
void packs_backward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                    const CausalConv1dResult& grads, const CausalConv1dTensors& into);

}  // namespace halo::cuda::causal
