// Sorting of many short rows: a warp a row.
#pragma once

#include <halo/core/tensor.h>

namespace halo::cuda {

/// As ops/sort_backend.h says of sort, where rows have up to 1024 elements of up to four bytes; false, and nothing
/// done, elsewhere.
bool sort_rows(const Tensor& x, bool descending, const Tensor& values, const Tensor& indices);

}  // namespace halo::cuda
