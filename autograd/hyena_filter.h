// Differentiable passes of the network that makes Hyena's filters.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

/// sin(frequency (x + bias)): x [rows, C], bias and frequency [C].
Tensor bias_sine(const Tensor& x, const Tensor& bias, const Tensor& frequency);

/// x [L, C] under a decaying window, as filters: y[c, l] = x[l, c] (exp(-time[l] |decay[c]|) + shift). time [L] and
/// decay [C] get no gradient.
Tensor decay_window(const Tensor& x, const Tensor& time, const Tensor& decay, double shift);

}  // namespace halo
