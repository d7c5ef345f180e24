// What a backend must provide for matrix products. a and b may be any views (the problem says how to step through
// them); c is written.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/matmul.h>

namespace halo::cpu {
/// C[i] = alpha op(A[i]) op(B[i]) + beta C[i], row-major; beta = 0 never reads C. k = 0 gives beta C.
void gemm(const GemmProblem& problem, const Tensor& a, const Tensor& b, const Tensor& c);
}  // namespace halo::cpu

namespace halo::cuda {
void gemm(const GemmProblem& problem, const Tensor& a, const Tensor& b, const Tensor& c);
}  // namespace halo::cuda
