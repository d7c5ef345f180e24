// Half types as storage alone: for functions that have no kernels of their own for them, operands and results in
// float32.
#pragma once

#include <halo/core/copy.h>
#include <halo/ops/backend.h>

namespace halo::ops {

inline bool is_half(DType dtype) { return dtype == DType::BFloat16 || dtype == DType::Float16; }

/// `tensors` (a Tensor, or a struct that has for_each_tensor) with its half tensors in float32.
template <class Tensors>
Tensors widened(Tensors tensors) {
  for_each_tensor(tensors, [](Tensor& t) {
    if (t.defined() && is_half(t.dtype())) t = convert(t, DType::Float32, t.device());
  });
  return tensors;
}

/// Float32 tensors of the same shapes, to be written.
template <class Tensors>
Tensors wide_like(Tensors tensors) {
  for_each_tensor(tensors, [](Tensor& t) {
    if (t.defined()) t = empty(t.shape(), {.dtype = DType::Float32, .device = t.device()});
  });
  return tensors;
}

/// Copies what was written back.
template <class Tensors>
void store_rounded(Tensors wide, Tensors rounded) {
  const auto from = tensors_of(wide), to = tensors_of(rounded);
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (to[i].defined()) halo::copy(from[i], to[i]);
  }
}

}  // namespace halo::ops
