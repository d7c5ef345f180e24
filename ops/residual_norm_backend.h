// residual_norm in one kernel: only CUDA has it, and only for rows that fit; ops/residual_norm.cpp composes the rest.
// Operands are dense, not empty, of one dtype and on one device, sizes checked. Statistics without cancellation, sums
// in a fixed order (norm_backend.h).
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/residual_norm.h>

namespace halo::cuda {
bool residual_norm_fits(const ResidualNormProblem& problem);
/// Writes all of `result`.
void residual_norm_forward(const ResidualNormProblem& problem, const ResidualNormTensors& operands,
                           const ResidualNormResult& result);
/// Writes all of `grads`. Reads result.sum, .mean and .rstd. g_sum may be undefined.
void residual_norm_backward(const ResidualNormProblem& problem, const ResidualNormResult& result, const Tensor& weight,
                            const Tensor& g_sum, const Tensor& g_y, const ResidualNormGrads& grads);
}  // namespace halo::cuda
