// Elementwise functions of one argument. Any strides; the result is dense.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/unary_functors.h>

namespace halo::ops {

/// f(x). Floating dtypes. @throws ArgumentError for another, in the name of the function that the caller wrote.
Tensor unary(UnaryOp op, const Tensor& x, UnaryParams params = {}, const char* name = "unary");

/// g * f'(s) for order 1, g * (f')'(s) for order 2; s is what unary_functors.h says is saved. Where g is 0 the result
/// is 0, whatever the derivative: an infinite slope in a branch that was masked out leaves no NaN.
Tensor unary_derivative(UnaryOp op, int order, const Tensor& g, const Tensor& s, UnaryParams params = {});

}  // namespace halo::ops
