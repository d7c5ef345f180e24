// Differentiable passes of the networks that make Hyena's filters: channels are rows, positions their elements.
// @throws ArgumentError where shapes, dtypes or devices do not fit.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

/// sin(frequency (x + bias)): x [..., C, L], bias and frequency [..., C].
Tensor bias_sine(const Tensor& x, const Tensor& bias, const Tensor& frequency);

/// x [C, L] under a decaying window: y[c, l] = x[c, l] (exp(-time[l] |decay[c]|) + shift). time [L] and decay [C] get
/// no gradient.
Tensor decay_window(const Tensor& x, const Tensor& time, const Tensor& decay, double shift);

}  // namespace halo
