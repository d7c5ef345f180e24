// What a backend must provide for token_filter. Operands are dense, of one dtype and on one device, shapes checked.
#pragma once

#include <halo/ops/token_filter.h>

namespace halo::cpu {
void token_filter_forward(const TokenFilterProblem& problem, const TokenFilterTensors& operands,
                          const std::vector<Tensor>& y);
/// Writes all of `into`; sums in a fixed order.
void token_filter_backward(const TokenFilterProblem& problem, const TokenFilterTensors& operands,
                           const std::vector<Tensor>& grads, const TokenFilterTensors& into);
}  // namespace halo::cpu

namespace halo::cuda {
void token_filter_forward(const TokenFilterProblem& problem, const TokenFilterTensors& operands,
                          const std::vector<Tensor>& y);
void token_filter_backward(const TokenFilterProblem& problem, const TokenFilterTensors& operands,
                           const std::vector<Tensor>& grads, const TokenFilterTensors& into);
}  // namespace halo::cuda
