// Differentiable core of a Hyena operator, from projections to the output's projection.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/weight_use.h>

namespace halo {

/// The Hyena recurrence of order 2. Projections of tokens [B, L, 3 D] plus projection_bias [3 D] go through a short
/// causal filter (short_weight [3 D, 1, K] or [3 D, K], short_bias [3 D]) and split into x0, x1 and v; the result is
/// x0 * long_conv(x1 * v), as tokens [B, L, D]. filter [D, L], skip [D]. Kept for backward are the projections alone:
/// what follows from them is made again. `filter_use` Again: the filter's transform is kept with it. K up to
/// TokenFilterProblem::kMaxKernel (5). @throws ArgumentError naming the argument that does not fit.
Tensor gated_long_conv(const Tensor& projections, const Tensor& projection_bias, const Tensor& short_weight,
                       const Tensor& short_bias, const Tensor& filter, const Tensor& skip,
                       WeightUse filter_use = WeightUse::Once);

}  // namespace halo
