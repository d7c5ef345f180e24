// The two passes of the network that makes Hyena's filters beside its products: sines with their own frequencies, and
// the decaying window.
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

/// sin(frequency (x + bias)): x [rows, C], bias and frequency [C].
Tensor bias_sine_forward(const Tensor& x, const Tensor& bias, const Tensor& frequency);
BiasSineGrads bias_sine_backward(const Tensor& g, const Tensor& x, const Tensor& bias, const Tensor& frequency);

/// y[c, l] = x[l, c] window[c, l]: positions [L, C] to filters [C, L].
Tensor decay_window_forward(const DecayWindow& window, const Tensor& x);
/// The gradient of x for that of y.
Tensor decay_window_backward(const DecayWindow& window, const Tensor& g);

}  // namespace ops
}  // namespace halo
