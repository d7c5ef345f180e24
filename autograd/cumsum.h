// Differentiable running sums.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

/// y[j] = x[0] + ... + x[j] along `dim`; x of any shape. @throws ArgumentError for a dim that x does not have, and for
/// uint8 and bool.
Tensor cumsum(const Tensor& x, int64_t dim);

}  // namespace halo
