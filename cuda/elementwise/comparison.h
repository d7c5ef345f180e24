// Comparisons, apart from arithmetic so that the two compile side by side.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/binary.h>

namespace halo::cuda {

/// out (bool) = op(a, b) for a comparison.
void compare(BinaryOp op, const Tensor& a, const Tensor& b, const Tensor& out);

}  // namespace halo::cuda
