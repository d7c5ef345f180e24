// The one layout behind all normalisations: dense x seen as [N, C, positions], with statistics a channel (batch norm)
// or a run of `length` values (the others).
#pragma once

#include <halo/ops/norm.h>

#include <cstdint>

#include "../device/divide.h"

namespace halo::cuda {

struct NormLayout {
  bool by_channel = true;  ///< statistics of channels, else of rows
  Divide positions, channels, length;

  explicit NormLayout(const BatchNormProblem& p) {
    const int64_t numel = p.batch * p.channels * p.positions;
    positions = Divide(p.positions, numel);
    channels = Divide(p.channels, numel);
  }
  explicit NormLayout(const RowNormProblem& p) : by_channel(false) {
    const int64_t numel = p.rows * p.length();
    positions = Divide(p.positions, numel);
    channels = Divide(p.channels(), numel);
    length = Divide(p.length(), numel);
  }

#ifdef __CUDACC__
  /// The channel, and the index of the statistics, of flat element i.
  __device__ __forceinline__ int64_t channel(int64_t i) const {
    int64_t row = positions.quotient(i);
    return channels.split(row);
  }
  __device__ __forceinline__ int64_t statistic(int64_t i) const { return by_channel ? channel(i) : length.quotient(i); }
#endif
};

/// Null where the tensor is undefined.
template <class T>
T* data_or_null(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}

}  // namespace halo::cuda
