// What a backend must provide for reductions: `x` viewed as [kept axes..., reduced axes...] with `kept` leading axes,
// any strides; `out` dense over the kept axes.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/reduce.h>

namespace halo::cpu {
void reduce(ReduceOp op, const Tensor& x, int kept, const Tensor& out);
/// sum((x - mean)^2) / (count - correction), the mean taken first; NaN where count <= correction.
void variance(const Tensor& x, int kept, double correction, const Tensor& out);
}  // namespace halo::cpu

namespace halo::cuda {
void reduce(ReduceOp op, const Tensor& x, int kept, const Tensor& out);
void variance(const Tensor& x, int kept, double correction, const Tensor& out);
}  // namespace halo::cuda
