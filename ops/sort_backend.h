// What a backend must provide for ordering. x dense [rows..., n], ordered along its last axis; indices int64. NaN
// counts as larger than every number; among equals the lower index comes first, whatever the direction.
#pragma once

#include <halo/core/tensor.h>

namespace halo::cpu {
/// values and indices of x's shape.
void sort(const Tensor& x, bool descending, const Tensor& values, const Tensor& indices);
/// The first k = values.size(-1) of sort(x, largest).
void topk(const Tensor& x, bool largest, const Tensor& values, const Tensor& indices);
/// indices [rows...]: the first largest (or smallest) element; a NaN beats every number in both directions.
void arg_extreme(const Tensor& x, bool largest, const Tensor& indices);
}  // namespace halo::cpu

namespace halo::cuda {
void sort(const Tensor& x, bool descending, const Tensor& values, const Tensor& indices);
void topk(const Tensor& x, bool largest, const Tensor& values, const Tensor& indices);
void arg_extreme(const Tensor& x, bool largest, const Tensor& indices);
}  // namespace halo::cuda
