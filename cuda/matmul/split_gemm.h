// Float32-accurate matrix products on Hopper tensor cores.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/matmul.h>

namespace halo::cuda {

/// True if this kernel did the product: on a Hopper GPU, of float32, where float32 accuracy is asked for, the operands
/// suit the copy engine (split_gemm_plan.h) and, unless `forced`, it is expected to be faster than float32 arithmetic.
bool split_gemm(const GemmProblem& problem, const Tensor& a, const Tensor& b, const Tensor& c, bool forced = false);

}  // namespace halo::cuda
