// Pooling on tensors. Nothing is recorded; the differentiable functions are in autograd/pool.h.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/pool_problem.h>

namespace halo::ops {

/// y, and where the maxima were: offsets in the window (PoolProblem::offset_dtype), undefined unless wanted.
struct MaxPoolResult {
  Tensor y{}, offsets{};
};
MaxPoolResult max_pool_forward(const PoolProblem& problem, const Tensor& x, bool want_offsets);
/// Spreads g [N, C, output...] to where the maxima were: dx.
Tensor max_pool_scatter(const PoolProblem& problem, const Tensor& offsets, const Tensor& g);
/// The values of x where the maxima were.
Tensor max_pool_gather(const PoolProblem& problem, const Tensor& offsets, const Tensor& x);
/// The places as int64 positions in the input plane, as PyTorch's `indices`.
Tensor max_pool_indices(const PoolProblem& problem, const Tensor& offsets);

Tensor avg_pool_forward(const PoolProblem& problem, const Tensor& x);
Tensor avg_pool_backward(const PoolProblem& problem, const Tensor& g);

}  // namespace halo::ops
