// Differentiable arithmetic with broadcasting, comparisons, selection and reductions.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

// --- Arithmetic: operands of one dtype and device; shapes broadcast -----------------------------------------------
Tensor operator+(const Tensor& a, const Tensor& b);
Tensor operator-(const Tensor& a, const Tensor& b);
Tensor operator*(const Tensor& a, const Tensor& b);
Tensor operator/(const Tensor& a, const Tensor& b);
Tensor operator+(const Tensor& a, double b);
Tensor operator-(const Tensor& a, double b);
Tensor operator*(const Tensor& a, double b);
Tensor operator/(const Tensor& a, double b);
Tensor operator+(double a, const Tensor& b);
Tensor operator-(double a, const Tensor& b);
Tensor operator*(double a, const Tensor& b);
Tensor operator/(double a, const Tensor& b);
Tensor operator-(const Tensor& a);
/// The larger; NaN wins. Where equal, half the gradient goes to each.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
/// condition ? a : b. The branch not taken gets gradient 0.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

// --- Comparisons: bool results, no gradient ---------------------------------------------------------------------
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);

// --- Reductions over `dims` (all axes where empty) ---------------------------------------------------------------
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// Largest and smallest values; the gradient is shared equally among ties. NaN wins.
Tensor amax(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// Sums down to `shape`, the adjoint of expand.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace halo
