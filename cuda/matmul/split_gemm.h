// Float32-accurate matrix products on Hopper tensor cores.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/matmul.h>

namespace halo::cuda {

/// True if this kernel did the product: on a Hopper GPU, of float32, where float32 accuracy is asked for and, unless
/// `forced`, it is expected to be faster than float32 arithmetic. Operands that are not aligned as the copy engine
/// wants them are copied first (split_gemm_plan.h).
bool split_gemm(const GemmProblem& problem, const Tensor& a, const Tensor& b, const Tensor& c, bool forced = false);

}  // namespace halo::cuda
