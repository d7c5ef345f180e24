// Running sums.
#pragma once

#include <halo/core/tensor.h>

namespace halo::ops {

/// y[j] = x[0] + ... + x[j] along `dim`, or x[j] + ... + x[n-1] where `reverse`. float32, float64, int64, int32.
Tensor cumsum(const Tensor& x, int64_t dim, bool reverse = false);

}  // namespace halo::ops
