// What a backend must provide for the causal depthwise convolution. Operands are dense, of one dtype and on one device,
// shapes checked; weight is [C, K].
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/causal_conv1d.h>

namespace halo::cpu {
/// Writes y, and final_state where defined (it overlaps no operand). bias and state may be undefined. A length below
/// state_length() shifts the old state.
void causal_conv1d_forward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                           const CausalConv1dResult& result);
/// Writes those of `into` that are defined. `grads` holds the upstream gradients; either may be undefined (0). With
/// silu the sum before it is recomputed. Sums in a fixed order.
void causal_conv1d_backward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                            const CausalConv1dResult& grads, const CausalConv1dTensors& into);
}  // namespace halo::cpu

namespace halo::cuda {
void causal_conv1d_forward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                           const CausalConv1dResult& result);
void causal_conv1d_backward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                            const CausalConv1dResult& grads, const CausalConv1dTensors& into);
}  // namespace halo::cuda
