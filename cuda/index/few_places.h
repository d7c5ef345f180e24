// Sums by index where there are few places: no sorting of the whole index.
#pragma once

#include <halo/core/tensor.h>

namespace halo::cuda {

/// y[v, ...] = the sum of g[j, ...] over all j with index[j] = v, for dense tensors of half types or float32 whose rows
/// are whole packs; indices outside y are left out. False, and nothing done, for others and for many places.
bool sum_few_places(const char* op, const Tensor& g, const Tensor& index, const Tensor& y);

}  // namespace halo::cuda
