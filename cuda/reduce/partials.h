// The second half of sums that other kernels take on the side: columns of partial sums, added in order in float64.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace halo::cuda {

/// out[c] = sum over p < parts of partials[p * pitch + c], divided by `divisor`, c < columns. `out` may be null
/// (nothing is done).
template <class Value, class T>
void sum_partials(const char* name, const Value* partials, int64_t parts, int64_t pitch, int64_t columns, T* out,
                  cudaStream_t stream, double divisor = 1);

}  // namespace halo::cuda
