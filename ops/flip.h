// Reversing axes.
#pragma once

#include <halo/core/tensor.h>

namespace halo::ops {

/// x read backward along each of `dims`. Any dtype, any strides; the result is dense.
Tensor flip(const Tensor& x, const Shape& dims);

}  // namespace halo::ops
