// Copies between layouts whose fastest axes differ.
#pragma once

#include <halo/core/tensor.h>

namespace halo::cuda {

/// target = source for tensors of one shape and dtype, if the target is contiguous along one axis and the source along
/// another: through tiles in shared memory, so that both are read and written in whole lines. False where they are
/// not, and nothing is done then.
bool copy_transposed(const Tensor& source, const Tensor& target);

}  // namespace halo::cuda
