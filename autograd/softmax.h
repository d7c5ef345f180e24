// Differentiable softmax of x of any shape. @throws ArgumentError for a dim that x does not have, or a dtype that is
// not floating.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

/// exp(x) / sum(exp(x)) along `dim`. A line that is all -inf, or holds +inf, gives NaN.
Tensor softmax(const Tensor& x, int64_t dim);
/// log(softmax(x)), without underflow.
Tensor log_softmax(const Tensor& x, int64_t dim);

}  // namespace halo
