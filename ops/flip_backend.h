// What a backend must provide for flip: any dtype, any strides of x; y dense, of x's shape.
#pragma once

#include <halo/core/tensor.h>

namespace halo::cpu {
/// y = x read backward along `dims` (each once, 0 <= dim < rank).
void flip(const Tensor& x, const Shape& dims, const Tensor& y);
}  // namespace halo::cpu

namespace halo::cuda {
void flip(const Tensor& x, const Shape& dims, const Tensor& y);
}  // namespace halo::cuda
