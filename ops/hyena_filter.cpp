#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/hyena_filter.h>
#include <halo/ops/hyena_filter_backend.h>

namespace halo::ops {
namespace {

void check_sine(const char* op, const Tensor& x, const Tensor& bias, const Tensor& frequency) {
  check_floating(op, {{"input", x}, {"bias", bias}, {"frequency", frequency}});
  Shape channels = x.shape();
  if (x.rank() > 0) channels.erase(x.rank() - 1);
  if (x.rank() < 2 || bias.shape() != channels || frequency.shape() != channels) {
    fail(op, ": input, bias and frequency expected [..., C, L], [..., C] and [..., C], got ", x.shape(), ", ",
         bias.shape(), " and ", frequency.shape());
  }
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
  check_floating(op, {{"grad_output", g}, {"input", x}});
  if (g.shape() != x.shape()) fail(op, ": grad_output expected ", x.shape(), ", got ", g.shape());
  const BiasSineGrads grads{empty(x.shape(), x.options()), empty(bias.shape(), x.options()),
                            empty(bias.shape(), x.options())};
  run_backend(op, x.device(), cpu::bias_sine_backward, cuda::bias_sine_backward, view::dense(g), view::dense(x),
              view::dense(bias), view::dense(frequency), writes(grads));
  return grads;
}

Tensor decay_window(const DecayWindow& window, const Tensor& x) {
  constexpr const char* op = "decay_window";
  check_floating(op, {{"input", x}, {"time", window.time}, {"decay", window.decay}});
  const Shape expected{window.decay.numel(), window.time.numel()};
  if (x.shape() != expected) fail(op, ": input expected ", expected, ", got ", x.shape());
  const DecayWindow dense{view::dense(window.time), view::dense(window.decay), window.shift};
  Tensor y = empty(x.shape(), x.options());
  run_backend(op, x.device(), cpu::decay_window, cuda::decay_window, dense, view::dense(x), writes(y));
  return y;
}

}  // namespace halo::ops
