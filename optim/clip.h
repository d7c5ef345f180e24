// Keeping gradients small.
#pragma once

#include <halo/core/tensor.h>

#include <vector>

namespace halo::optim {

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)), where norm is the Euclidean norm of all of them together,
/// or the largest absolute value for `norm_type` infinity. Returns the norm before that: one float64 element on the
/// gradients' device, so that nothing waits for a GPU. A norm that is not finite makes every gradient 0 or NaN: read it
/// where that matters. @throws ArgumentError for a negative max_norm or another norm_type.
Tensor clip_grad_norm_(const std::vector<Tensor>& params, double max_norm, double norm_type = 2);

/// Clamps every gradient to [-value, value]. @throws ArgumentError for a negative value.
void clip_grad_value_(const std::vector<Tensor>& params, double value);

}  // namespace halo::optim
