// Differentiable running sums.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

/// y[j] = x[0] + ... + x[j] along `dim`.
Tensor cumsum(const Tensor& x, int64_t dim);

}  // namespace halo
