// The second half of sums that other kernels take on the side: columns of partial sums, added in order in float64.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace halo::cuda {

/// out[c] = sum over p < parts of partials[p * pitch + c], c < columns. `out` may be null (nothing is done).
template <class T>
void sum_partials(const char* name, const T* partials, int64_t parts, int64_t pitch, int64_t columns, T* out,
                  cudaStream_t stream);

}  // namespace halo::cuda
