// Products of a few rows with a weight: a generation step, inference on one input.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/matmul.h>

namespace halo::cuda {

/// As ops/matmul_backend.h says of gemm, for float32 products of up to four rows with a matrix of up to 8 MiB whose
/// columns are contiguous, all lines at multiples of 16 bytes. False, and nothing done, for others.
bool few_rows_gemm(const GemmProblem& problem, const Tensor& a, const Tensor& b, const Tensor& c);

}  // namespace halo::cuda
