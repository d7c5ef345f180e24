// Differentiable arithmetic with broadcasting, comparisons, selection and reductions.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

// --- Arithmetic: operands of one dtype and device; shapes broadcast -----------------------------------------------
// @throws ArgumentError where dtypes or devices differ, shapes do not broadcast, or a number meets integers.
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
/// condition ? a : b, with a bool condition; all three broadcast. The branch not taken gets gradient 0.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

// --- Comparisons: bool results, no gradient ---------------------------------------------------------------------
// A number is taken in the tensor's dtype: rounded to a floating one. @throws ArgumentError where an integer dtype does
// not hold it (2.5, or -1 beside uint8).
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, const Scalar& b);
Tensor ne(const Tensor& a, const Scalar& b);
Tensor lt(const Tensor& a, const Scalar& b);
Tensor le(const Tensor& a, const Scalar& b);
Tensor gt(const Tensor& a, const Scalar& b);
Tensor ge(const Tensor& a, const Scalar& b);
/// Whether elements are numbers, infinite, NaN. Integers are all finite.
Tensor isfinite(const Tensor& x);
Tensor isinf(const Tensor& x);
Tensor isnan(const Tensor& x);
/// Of any dtype: what is not 0 is true.
Tensor logical_not(const Tensor& x);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);

// --- Reductions over `dims` (all axes where empty; negative ones count from the back) ----------------------------
// The result lacks those axes, or keeps them with extent 1. @throws ArgumentError for a dim that x does not have; mean
// for integers; amax and amin where there is nothing to choose from.
Tensor sum(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor mean(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// Largest and smallest values; the gradient is shared equally among ties. NaN wins.
Tensor amax(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Shape& dims = {}, bool keepdim = false);
/// Sums down to `shape`, the adjoint of expand. @throws ArgumentError where `shape` does not broadcast to x's.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace halo
