// Telling people which element was at fault.
#pragma once

#include <halo/core/error.h>
#include <halo/core/tensor.h>

namespace halo::cpu {

/// The coordinates of row-major element `flat` of `shape`.
inline Shape position(const Shape& shape, int64_t flat) {
  Shape at = shape;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    at[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return at;
}

/// @throws ArgumentError naming position and value unless all of `index` (dense, int64) lies in [0, extent).
inline void check_indices(const char* op, const Tensor& index, int64_t extent) {
  const int64_t* const at = index.data<int64_t>();
  for (int64_t i = 0; i < index.numel(); ++i) {
    if (at[i] >= 0 && at[i] < extent) continue;
    fail(op, ": index expected from 0 to ", extent - 1, ", got ", at[i], " at position ", position(index.shape(), i));
  }
}

}  // namespace halo::cpu
