#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/hyena_filter.h>
#include <halo/ops/hyena_filter_backend.h>

namespace halo::ops {
namespace {

void check_sine(const char* op, const Tensor& x, const Tensor& bias, const Tensor& frequency) {
  check_same_dtype_and_device(op, {{"input", x}, {"bias", bias}, {"frequency", frequency}});
  if (x.rank() != 2 || bias.shape() != Shape{x.size(1)} || frequency.shape() != bias.shape()) {
    fail(op, ": input, bias and frequency expected [rows, C], [C] and [C], got ", x.shape(), ", ", bias.shape(),
         " and ", frequency.shape());
  }
}

Tensor windowed(const char* op, const DecayWindow& window, bool backward, const Tensor& x) {
  check_same_dtype_and_device(op, {{"input", x}, {"time", window.time}, {"decay", window.decay}});
  const int64_t length = window.time.numel(), channels = window.decay.numel();
  const Shape from = backward ? Shape{channels, length} : Shape{length, channels};
  if (x.shape() != from) fail(op, ": input expected ", from, ", got ", x.shape());
  const DecayWindow dense{view::dense(window.time), view::dense(window.decay), window.shift};
  Tensor y = empty({from[1], from[0]}, x.options());
  run_backend(op, x.device(), cpu::decay_window, cuda::decay_window, dense, backward, view::dense(x), writes(y));
  return y;
}

}  // namespace

Tensor bias_sine_forward(const Tensor& x, const Tensor& bias, const Tensor& frequency) {
  constexpr const char* op = "bias_sine";
  check_sine(op, x, bias, frequency);
  Tensor y = empty(x.shape(), x.options());
  run_backend(op, x.device(), cpu::bias_sine_forward, cuda::bias_sine_forward, view::dense(x), view::dense(bias),
              view::dense(frequency), writes(y));
  return y;
}

BiasSineGrads bias_sine_backward(const Tensor& g, const Tensor& x, const Tensor& bias, const Tensor& frequency) {
  constexpr const char* op = "bias_sine_backward";
  check_sine(op, x, bias, frequency);
  check_same_dtype_and_device(op, {{"grad_output", g}, {"input", x}});
  if (g.shape() != x.shape()) fail(op, ": grad_output expected ", x.shape(), ", got ", g.shape());
  const BiasSineGrads grads{empty(x.shape(), x.options()), empty(bias.shape(), x.options()),
                            empty(bias.shape(), x.options())};
  run_backend(op, x.device(), cpu::bias_sine_backward, cuda::bias_sine_backward, view::dense(g), view::dense(x),
              view::dense(bias), view::dense(frequency), writes(grads));
  return grads;
}

Tensor decay_window_forward(const DecayWindow& window, const Tensor& x) {
  return windowed("decay_window", window, false, x);
}

Tensor decay_window_backward(const DecayWindow& window, const Tensor& g) {
  return windowed("decay_window_backward", window, true, g);
}

}  // namespace halo::ops
