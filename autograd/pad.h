// Differentiable padding.
#pragma once

#include <halo/core/scalar.h>
#include <halo/core/tensor.h>
#include <halo/ops/pad.h>

namespace halo {

/// `amounts` lists before and after of the last axis, then of the one in front of it, and so on (PyTorch's order): 2, 4
/// or 6 numbers of 0 or more. Reflect leaves the edge out and needs less than the extent, Circular at most the extent.
/// x of any dtype with that many axes at least. @throws ArgumentError naming the axis whose padding does not fit.
Tensor pad(const Tensor& x, const IntList& amounts, PadMode mode = PadMode::Constant, const Scalar& value = 0);

}  // namespace halo
