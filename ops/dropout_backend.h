// What a backend must provide for dropout: x of any strides, y dense; the mask follows the row-major position.
#pragma once

#include <halo/core/philox.h>
#include <halo/core/tensor.h>

namespace halo::cpu {
/// y[i] = random_uniform(state, i) < float(p) ? 0 : x[i] * T(1 / (1 - p)); dropped elements are exactly 0, NaN or not.
void dropout(double p, PhiloxState state, const Tensor& x, const Tensor& y);
}  // namespace halo::cpu

namespace halo::cuda {
void dropout(double p, PhiloxState state, const Tensor& x, const Tensor& y);
}  // namespace halo::cuda
