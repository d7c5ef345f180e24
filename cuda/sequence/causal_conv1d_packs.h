// Causal depthwise convolution of half types by whole packs; host side.
#pragma once

#include <halo/ops/causal_conv1d_backend.h>

namespace halo::cuda::causal {

/// Two to four neighbouring taps, and rows of whole packs, wherever they begin.
bool goes_by_packs(const CausalConv1dProblem& problem, DType dtype);

/// Writes y. All that goes_by_packs().
void packs_forward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands, const Tensor& y);
/// Writes those of `into` that are defined. grads.y is defined.
void packs_backward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                    const CausalConv1dResult& grads, const CausalConv1dTensors& into);

}  // namespace halo::cuda::causal
