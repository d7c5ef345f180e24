// A dense tensor as rows along one of its axes.
#pragma once

#include <halo/core/tensor.h>

#include <cstdint>

#include "divide.h"

namespace halo::cuda {

/// Element j of row r lies at begin(r) + j * step.
struct Rows {
  int64_t count = 1, length = 1, step = 1;
  Divide inner;  ///< by `step`

  Rows(int64_t rows, int64_t elements) : count(rows), length(elements) {}
  Rows(const Tensor& x, int dim) {
    for (int axis = 0; axis < x.rank(); ++axis) {
      if (axis != dim) count *= x.shape()[axis];
      if (axis > dim) step *= x.shape()[axis];
    }
    if (x.rank() > 0) length = x.shape()[dim];
    inner = Divide(step, count);
  }

#ifdef __CUDACC__
  __device__ __forceinline__ int64_t begin(int64_t row) const {
    const int64_t at = inner.split(row);
    return row * length * step + at;
  }
#endif
};

}  // namespace halo::cuda
