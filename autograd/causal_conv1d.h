// Differentiable causal depthwise convolution along a sequence, whole, in chunks, or one step at a time.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/activation.h>

#include <cstdint>

namespace halo {

struct CausalConv1dOptions {
  int64_t dilation = 1;
  ActivationKind activation = ActivationKind::None;  ///< None or Silu, in the same pass
};

/// y[b, c, t] = f(bias[c] + sum_k w[c, k] v[b, c, t + k dilation]), where v is x with (K - 1) dilation zeros before it.
/// x [B, C, L], w [C, 1, K] or [C, K], bias [C] or undefined; y [B, C, L]. @throws ArgumentError, as the functions
/// below, naming the argument whose shape, dtype or device does not fit, a dilation below 1, another activation.
Tensor causal_conv1d(const Tensor& input, const Tensor& weight, const Tensor& bias = {},
                     const CausalConv1dOptions& options = {});

/// Continues a sequence: the (K - 1) dilation inputs before x are `initial_state` [B, C, (K - 1) dilation] instead of
/// zeros (which an undefined one means), and the last ones seen come back. Chunks of any length give what the whole
/// gives.
struct CausalConv1dOutput {
  Tensor output, final_state;
};
CausalConv1dOutput causal_conv1d_with_state(const Tensor& input, const Tensor& weight, const Tensor& bias,
                                            const Tensor& initial_state, const CausalConv1dOptions& options = {});

/// Several sequences one behind the other: sequence i has the positions from offsets[i] to offsets[i + 1] of x [B, C,
/// L], and none sees what is before its own. `offsets` starts with 0, ends with L and does not decrease. y [B, C, L].
Tensor causal_conv1d_packed(const Tensor& input, const IntList& offsets, const Tensor& weight, const Tensor& bias = {},
                            const CausalConv1dOptions& options = {});

/// A step of decoding: x [B, C] or [B, C, T] gives y of the same shape, and `state` moves on in place. Not recorded:
/// @throws ArgumentError where a gradient would be lost.
Tensor causal_conv1d_update(const Tensor& input, const Tensor& state, const Tensor& weight, const Tensor& bias = {},
                            const CausalConv1dOptions& options = {});

}  // namespace halo
