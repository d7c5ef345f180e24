// The two passes of the networks that make Hyena's filters beside their products: sines with their own frequencies, and
// the decaying window. A channel is a row, and positions are its elements, as in a filter.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

/// Gradients of bias_sine.
struct BiasSineGrads {
  Tensor x{}, bias{}, frequency{};
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&x, &bias, &frequency}) f(*t);
  }
};

/// window[c, l] = exp(-time[l] |decay[c]|) + shift.
struct DecayWindow {
  Tensor time{};   ///< [L]
  Tensor decay{};  ///< [C]
  double shift = 0;
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&time, &decay}) f(*t);
  }
};

namespace ops {

/// sin(frequency (x + bias)): x [..., C, L], bias and frequency [..., C].
Tensor bias_sine_forward(const Tensor& x, const Tensor& bias, const Tensor& frequency);
BiasSineGrads bias_sine_backward(const Tensor& g, const Tensor& x, const Tensor& bias, const Tensor& frequency);

/// x window: x [C, L]. Its own adjoint.
Tensor decay_window(const DecayWindow& window, const Tensor& x);

}  // namespace ops
}  // namespace halo
