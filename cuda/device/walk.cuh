// Offsets of element i in several tensors of one shape, whatever their strides.
#pragma once

#include <cstddef>
#include <cstdint>

#include "divide.h"

namespace halo::cuda {

/// The loop nest of core/strided.h's StridedLoop<N> as a kernel sees it. Strides and offsets are in elements.
template <int N>
struct Walk {
  static constexpr int kMaxAxes = 8;

  int rank = 0;
  bool dense = true;  ///< one axis with steps of 1 in every operand
  int64_t count = 0;
  Divide extent[kMaxAxes];
  int64_t stride[N][kMaxAxes];

  template <class StridedLoop>
  explicit Walk(const StridedLoop& loop) : rank(loop.shape.rank()), dense(rank == 1), count(loop.numel()) {
    for (int axis = 0; axis < rank; ++axis) {
      extent[axis] = Divide(loop.shape[axis], count);
      for (int k = 0; k < N; ++k) {
        stride[k][axis] = loop.strides[static_cast<std::size_t>(k)][axis];
        dense = dense && stride[k][axis] == 1;
      }
    }
  }

#ifdef __CUDACC__
  /// offset[k] = where operand k has element `index` (row-major over the axes).
  __device__ __forceinline__ void locate(int64_t index, int64_t (&offset)[N]) const {
#pragma unroll
    for (int k = 0; k < N; ++k) offset[k] = 0;
    for (int axis = rank - 1; axis > 0; --axis) {
      const int64_t at = extent[axis].split(index);
#pragma unroll
      for (int k = 0; k < N; ++k) offset[k] += at * stride[k][axis];
    }
#pragma unroll
    for (int k = 0; k < N; ++k) offset[k] += index * stride[k][0];
  }
#endif
};

}  // namespace halo::cuda
