// The seam between two blocks of a residual network in one pass: add a branch to the residual stream, then layer norm.
#pragma once

#include <halo/core/tensor.h>

#include <cstdint>

namespace halo {

/// `rows` rows of `length` values.
struct ResidualNormProblem {
  int64_t rows = 0, length = 1;
  double eps = 1e-5;
};

/// sum = x + x_bias + residual, y = (sum - mean) rstd weight + bias with the row's mean and deviation. x, residual
/// [rows, length]; x_bias, weight, bias [length]. All but x may be undefined (0, 1).
struct ResidualNormTensors {
  Tensor x{}, x_bias{}, residual{}, weight{}, bias{};
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&x, &x_bias, &residual, &weight, &bias}) f(*t);
  }
};
/// sum, y [rows, length]; mean, rstd [rows], kept for backward.
struct ResidualNormResult {
  Tensor sum{}, y{}, mean{}, rstd{};
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&sum, &y, &mean, &rstd}) f(*t);
  }
};
/// Gradients: `sum` is that of x and of residual; x_bias, weight, bias [length].
struct ResidualNormGrads {
  Tensor sum{}, x_bias{}, weight{}, bias{};
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&sum, &x_bias, &weight, &bias}) f(*t);
  }
};

namespace ops {

/// Results have the shape of x, whose last axis is normalised.
ResidualNormResult residual_norm_forward(const ResidualNormProblem& problem, const ResidualNormTensors& operands,
                                         const char* op = "residual_norm");

/// Gradients of <sum, g_sum> + <y, g_y>. `g_sum` may be undefined (0).
ResidualNormGrads residual_norm_backward(const ResidualNormProblem& problem, const ResidualNormResult& result,
                                         const Tensor& weight, const Tensor& g_sum, const Tensor& g_y);

}  // namespace ops
}  // namespace halo
