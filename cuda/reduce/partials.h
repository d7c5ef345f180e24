// The second half of sums that other kernels take on the side: columns of partial sums, added in order in float64.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace halo::cuda {

/// Where sums go; null: not wanted. The partial sums of the next output lie `step` behind those of one.
template <class T>
struct SumOutputs {
  static constexpr int kMost = 3;
  T* at[kMost] = {};
  int64_t step = 0;
};

/// out.at[k][c] = sum over p < parts of partials[p * pitch + k * out.step + c], divided by `divisor`, c < columns.
/// `early`: the kernel that made the partial sums calls release_next_grid.
template <class Value, class T>
void sum_partials(const char* name, const Value* partials, int64_t parts, int64_t pitch, int64_t columns,
                  const SumOutputs<T>& out, cudaStream_t stream, double divisor = 1, bool early = false);
template <class Value, class T>
void sum_partials(const char* name, const Value* partials, int64_t parts, int64_t pitch, int64_t columns, T* out,
                  cudaStream_t stream, double divisor = 1, bool early = false) {
  sum_partials(name, partials, parts, pitch, columns, SumOutputs<T>{{out}}, stream, divisor, early);
}

}  // namespace halo::cuda
