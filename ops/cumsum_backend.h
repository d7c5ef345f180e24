// What a backend must provide for running sums: x and y dense, of one shape and dtype (float32, float64, int64, int32).
#pragma once

#include <halo/core/tensor.h>

namespace halo::cpu {
/// y[j] = x[0] + ... + x[j] along `dim`; from the other end where `reverse`. Bits do not depend on other rows.
void cumsum(const Tensor& x, int dim, bool reverse, const Tensor& y);
}  // namespace halo::cpu

namespace halo::cuda {
void cumsum(const Tensor& x, int dim, bool reverse, const Tensor& y);
}  // namespace halo::cuda
