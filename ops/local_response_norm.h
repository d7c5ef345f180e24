// Local response normalisation over the channels (Krizhevsky et al. 2012, section 3.3).
#pragma once

#include <halo/core/tensor.h>

#include <cstdint>

namespace halo {

/// y_c = x_c s_c^-beta with s_c = k + alpha * sum of x_j^2 over the channels j in [c - before(), c + after()] that
/// exist. `alpha` is the factor of the sum itself: a caller whose alpha is divided by `size` has divided it. Gradient:
/// dx_c = g_c s_c^-beta - 2 alpha beta x_c * sum of g_j x_j s_j^(-beta - 1) over j in [c - after(), c + before()].
struct LocalResponseNorm {
  int64_t size = 5;
  double alpha = 1e-4;
  double beta = 0.75;
  double k = 1;
  int64_t before() const { return size / 2; }
  int64_t after() const { return (size - 1) / 2; }
};

namespace ops {

/// x [N, C, ...]. @throws ArgumentError for fewer than two axes or size < 1.
Tensor local_response_norm_forward(const LocalResponseNorm& norm, const Tensor& x);
Tensor local_response_norm_backward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& g);

}  // namespace ops
}  // namespace halo
