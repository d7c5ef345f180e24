// Matrix products by cuBLASLt, which is opened when the first is wanted: no other file knows of it, and a machine
// without it still runs everything (matmul/tiled.cu takes over).
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/matmul.h>

namespace halo::cuda {

/// True if the library did the product; false where it is not installed or has nothing for this one. Float32 is full
/// float32 unless Precision::TF32 is in force. m, n, k and batch are at least 1.
bool cublaslt_gemm(const GemmProblem& problem, const Tensor& a, const Tensor& b, const Tensor& c);

}  // namespace halo::cuda
