// Reductions over any set of axes.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

enum class ReduceOp : uint8_t { Sum, Mean, Max, Min };

namespace ops {

/// Reduces `dims` (all axes where empty; negative count from the back). Sums accumulate in float64 on the CPU and in a
/// fixed order everywhere. Max and Min pass NaN on and need at least one element. Mean needs a floating dtype.
Tensor reduce(ReduceOp op, const Tensor& x, const Shape& dims = {}, bool keepdim = false);

/// Sums `x` down to `shape`, the adjoint of broadcasting from it.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace ops
}  // namespace halo
