// A short causal filter on its way from tokens to sequences: [B, L, C] in, [B, C, L] out, in one pass. The front of a
// Hyena operator, whose projections come as tokens and whose long convolutions take sequences.
#pragma once

#include <halo/core/tensor.h>

#include <cstdint>
#include <vector>

namespace halo {

/// y[part][b, c, t] = bias[d] + sum_k weight[d, k] v[b, t - (kernel - 1) + k, d], d = part * channels + c, with
/// v = x + x_bias inside the sequence and 0 before it.
struct TokenFilterProblem {
  static constexpr int64_t kMaxKernel = 5, kMaxParts = 8;
  int64_t batch = 0, length = 0, parts = 1, channels = 0, kernel = 1;
  int64_t width() const { return parts * channels; }
  Shape part_shape() const { return {batch, channels, length}; }
};

/// x [B, L, width], x_bias [width], weight [width, kernel], bias [width]; the biases may be undefined (0). Gradients
/// have the shapes of what they belong to.
struct TokenFilterTensors {
  Tensor x{}, x_bias{}, weight{}, bias{};
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&x, &x_bias, &weight, &bias}) f(*t);
  }
};

namespace ops {

/// One [B, channels, L] a part. @throws ArgumentError beyond kMaxKernel or kMaxParts.
std::vector<Tensor> token_filter_forward(const TokenFilterProblem& problem, const TokenFilterTensors& operands);

/// Gradients of sum over parts of <y[part], grads[part]>; all four.
TokenFilterTensors token_filter_backward(const TokenFilterProblem& problem, const TokenFilterTensors& operands,
                                         const std::vector<Tensor>& grads);

}  // namespace ops
}  // namespace halo
