// Joining tensors.
#pragma once

#include <halo/core/tensor.h>

#include <vector>

namespace halo::ops {

/// The tensors one after the other along `dim`. One dtype, device and rank; equal extents on the other axes. Any dtype.
Tensor cat(const std::vector<Tensor>& tensors, int64_t dim = 0);

}  // namespace halo::ops
