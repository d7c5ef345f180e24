// What a backend must provide for the passes of Hyena's filters. Operands are dense, of one dtype and on one device,
// shapes checked.
#pragma once

#include <halo/ops/hyena_filter.h>

namespace halo::cpu {
void bias_sine_forward(const Tensor& x, const Tensor& bias, const Tensor& frequency, const Tensor& y);
/// Writes all of `grads`; sums over positions in a fixed order.
void bias_sine_backward(const Tensor& g, const Tensor& x, const Tensor& bias, const Tensor& frequency,
                        const BiasSineGrads& grads);
void decay_window(const DecayWindow& window, const Tensor& x, const Tensor& y);
}  // namespace halo::cpu

namespace halo::cuda {
void bias_sine_forward(const Tensor& x, const Tensor& bias, const Tensor& frequency, const Tensor& y);
void bias_sine_backward(const Tensor& g, const Tensor& x, const Tensor& bias, const Tensor& frequency,
                        const BiasSineGrads& grads);
void decay_window(const DecayWindow& window, const Tensor& x, const Tensor& y);
}  // namespace halo::cuda
