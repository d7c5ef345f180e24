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
  int64_t count = 0;
  Divide extent[kMaxAxes];
  int64_t stride[N][kMaxAxes];

  template <class StridedLoop>
  explicit Walk(const StridedLoop& loop) : rank(loop.shape.rank()), count(loop.numel()) {
    for (int axis = 0; axis < rank; ++axis) {
      extent[axis] = Divide(loop.shape[axis], count);
      for (int k = 0; k < N; ++k) {
        stride[k][axis] = loop.strides[static_cast<std::size_t>(k)][axis];
      }
    }
  }

#ifdef __CUDACC__
  /// offset[u][k] = where operand k has element index[u] (row-major over the axes).
  template <int kCount>
  __device__ __forceinline__ void locate(int64_t (&index)[kCount], int64_t (&offset)[kCount][N]) const {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
#pragma unroll
      for (int k = 0; k < N; ++k) offset[u][k] = 0;
    }
#pragma unroll 1
    for (int axis = rank - 1; axis > 0; --axis) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        const int64_t at = extent[axis].split(index[u]);
#pragma unroll
        for (int k = 0; k < N; ++k) offset[u][k] += at * stride[k][axis];
      }
    }
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
#pragma unroll
      for (int k = 0; k < N; ++k) offset[u][k] += index[u] * stride[k][0];
    }
  }
  /// The same of one element.
  __device__ __forceinline__ void locate(int64_t index, int64_t (&offset)[N]) const {
    int64_t indices[1] = {index}, offsets[1][N];
    locate(indices, offsets);
#pragma unroll
    for (int k = 0; k < N; ++k) offset[k] = offsets[0][k];
  }
#endif
};

}  // namespace halo::cuda
