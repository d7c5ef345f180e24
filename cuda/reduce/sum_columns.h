// Sums of the columns of a matrix, which is what gradients of biases are.
#pragma once

#include <halo/core/tensor.h>

namespace halo::cuda {

/// As ops/reduce_backend.h says of Sum, divided by `divisor`, where x (floating, not empty) is a dense matrix and its
/// columns are summed; false, and nothing done, elsewhere.
bool sum_columns(const Tensor& x, int kept, double divisor, const Tensor& out);

}  // namespace halo::cuda
