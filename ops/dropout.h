// Dropout.
#pragma once

#include <halo/core/philox.h>
#include <halo/core/tensor.h>

namespace halo::ops {

/// Element i (row-major) becomes x / (1 - p) where draw i after `state` is at least p, else exactly 0 (NaN or not). The
/// same call on a gradient is the backward: the mask comes again from `state`. Bit-equal on every device.
Tensor dropout(const Tensor& x, double p, PhiloxState state);

}  // namespace halo::ops
