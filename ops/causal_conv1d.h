// Causal depthwise convolution along a sequence, with a carried state: the short filter of state-space and Hyena
// models.
#pragma once

#include <halo/core/tensor.h>

#include <cstdint>

namespace halo {

/// y[b, c, t] = f(bias[c] + sum_k w[c, k] v[b, c, t + k dilation]), where v is `state` (state_length() values, the
/// inputs that came before; zeros where there is none) followed by x, and f is silu or nothing. The final state is the
/// last state_length() values of v.
struct CausalConv1dProblem {
  int64_t batch = 0, channels = 0, length = 0, kernel = 1, dilation = 1;
  bool silu = false;

  /// x [B, C, L]; w [C, 1, K] or [C, K]. @throws ArgumentError naming the argument and what was expected.
  static CausalConv1dProblem make(const char* op, const Shape& x_shape, const Shape& w_shape, int64_t dilation,
                                  bool silu);

  int64_t state_length() const { return (kernel - 1) * dilation; }
  Shape x_shape() const { return {batch, channels, length}; }
  Shape state_shape() const { return {batch, channels, state_length()}; }
  bool operator==(const CausalConv1dProblem&) const = default;
};

/// x [B, C, L], weight [C, K], bias [C], state [B, C, state_length()]. bias and state may be undefined.
struct CausalConv1dTensors {
  Tensor x{}, weight{}, bias{}, state{};
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&x, &weight, &bias, &state}) f(*t);
  }
};
/// final_state is undefined where not asked for.
struct CausalConv1dResult {
  Tensor y{}, final_state{};
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&y, &final_state}) f(*t);
  }
};

namespace ops {

/// weight may also be [C, 1, K]. Errors are reported in the name of `op`.
CausalConv1dResult causal_conv1d_forward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                                         bool want_final_state, const char* op = "causal_conv1d");

/// Which gradients to compute.
struct CausalConv1dWanted {
  bool x = false, weight = false, bias = false, state = false;
};
/// Gradients of <y, grads.y> + <final_state, grads.final_state>; either may be undefined (0). The gradient of weight
/// has weight's shape.
CausalConv1dTensors causal_conv1d_backward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                                           const CausalConv1dResult& grads, const CausalConv1dWanted& wanted);

}  // namespace ops
}  // namespace halo
