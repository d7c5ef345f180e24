// The reductions that only floating types have.
#pragma once

#include <halo/core/tensor.h>

namespace halo::cuda {

/// As ops/reduce_backend.h says of LogSumExp and Norm; at least one element and one output.
void log_sum_exp(const Tensor& x, int kept, const Tensor& out);
void euclidean_norm(const Tensor& x, int kept, const Tensor& out);

}  // namespace halo::cuda
