// What a backend must provide for pooling. Operands are dense, of one dtype and on one device, shapes checked; every
// element of the last argument is written. Activations are [N, C, spatial...]; `offsets` has y's shape and the dtype
// problem.offset_dtype(), and holds the offsets in the window that PoolProblem describes.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/pool_problem.h>

namespace halo::cpu {
/// The first largest input of each window in row-major order; a NaN is larger than anything (the first one wins).
/// `offsets` is undefined where nobody wants them.
void max_pool_forward(const PoolProblem& problem, const Tensor& x, const Tensor& y, const Tensor& offsets);
/// x = 0, then x at each window's maximum += g of that window: the adjoint of max_pool_gather. Sums in a fixed order.
void max_pool_scatter(const PoolProblem& problem, const Tensor& offsets, const Tensor& g, const Tensor& x);
/// y = x at each window's maximum.
void max_pool_gather(const PoolProblem& problem, const Tensor& offsets, const Tensor& x, const Tensor& y);
/// The same places as int64 positions in the input plane, (d * H + h) * W + w.
void max_pool_indices(const PoolProblem& problem, const Tensor& offsets, const Tensor& indices);
/// The sum of the inputs of each window, divided by problem.divisor_override if that is not 0, else by the product over
/// the axes of PoolWindow::padded (count_include_pad, adaptive) or PoolWindow::count.
void avg_pool_forward(const PoolProblem& problem, const Tensor& x, const Tensor& y);
/// Its adjoint.
void avg_pool_backward(const PoolProblem& problem, const Tensor& g, const Tensor& x);
}  // namespace halo::cpu

namespace halo::cuda {
void max_pool_forward(const PoolProblem& problem, const Tensor& x, const Tensor& y, const Tensor& offsets);
void max_pool_scatter(const PoolProblem& problem, const Tensor& offsets, const Tensor& g, const Tensor& x);
void max_pool_gather(const PoolProblem& problem, const Tensor& offsets, const Tensor& x, const Tensor& y);
void max_pool_indices(const PoolProblem& problem, const Tensor& offsets, const Tensor& indices);
void avg_pool_forward(const PoolProblem& problem, const Tensor& x, const Tensor& y);
void avg_pool_backward(const PoolProblem& problem, const Tensor& g, const Tensor& x);
}  // namespace halo::cuda
