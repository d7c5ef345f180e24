// Copies, conversions and fills. Plain functions that record nothing.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

/// target = source, elementwise: same shape, any strides, dtypes and devices. Floating to integer truncates toward
/// zero; anything to bool is `!= 0`.
void copy(const Tensor& source, const Tensor& target);
/// Every element = value.
void fill(const Tensor& target, const Scalar& value);
/// `tensor` in another dtype on another device: the same handle where nothing changes, else a dense copy.
Tensor convert(const Tensor& tensor, DType dtype, Device device);

}  // namespace halo
