// The product for machines without cuBLASLt: a plain tiled kernel.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/matmul.h>

namespace halo::cuda {

/// As ops/matmul_backend.h says of gemm; float32 and float64; m, n, k and batch at least 1.
void tiled_gemm(const GemmProblem& problem, const Tensor& a, const Tensor& b, const Tensor& c);

}  // namespace halo::cuda
