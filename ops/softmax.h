// Softmax and its logarithm.
#pragma once

#include <halo/core/tensor.h>

namespace halo::ops {

/// exp(x) / sum(exp(x)) along `dim`, or its logarithm. A line that is all -inf, or holds +inf, gives NaN.
Tensor softmax(bool log, const Tensor& x, int64_t dim);
/// Gradient of x for the upstream gradient g of the result y.
Tensor softmax_backward(bool log, const Tensor& g, const Tensor& y, int64_t dim);

}  // namespace halo::ops
