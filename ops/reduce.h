// Reductions over any set of axes.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

/// LogSumExp = log(sum(exp(x))) without overflow; Norm = sqrt(sum(x^2)). Any and All give bool.
enum class ReduceOp : uint8_t { Sum, Mean, Max, Min, LogSumExp, Norm, Any, All };
/// The function that people call: "sum", "amax".
const char* name(ReduceOp op);

/// What a loss does with the losses of its elements.
enum class Reduction : uint8_t { None, Mean, Sum };

namespace ops {

/// Reduces `dims` (all axes where empty; negative count from the back). Sums accumulate in float64 on the CPU and in a
/// fixed order everywhere. Max and Min pass NaN on and need at least one element. Of no elements the sum and the norm
/// are 0, the mean NaN, log-sum-exp -inf, any false and all true. Mean, LogSumExp and Norm need a floating dtype.
Tensor reduce(ReduceOp op, const Tensor& x, const Shape& dims = {}, bool keepdim = false);

/// sum((x - mean)^2) / (count - correction) over `dims`; NaN where count <= correction. Floating dtypes.
Tensor variance(const Tensor& x, const Shape& dims, double correction, bool keepdim = false, const char* op = "var");

/// Sums `x` down to `shape`, the adjoint of broadcasting from it.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace ops
}  // namespace halo
