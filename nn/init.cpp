#include <halo/autograd/arithmetic.h>
#include <halo/autograd/grad_mode.h>
#include <halo/core/error.h>
#include <halo/nn/init.h>

#include <cmath>

namespace halo::nn::init {
namespace {

double kaiming_std(const Tensor& weight, double a, FanMode mode) {
  const Fan fan = fan_of(weight);
  const auto terms = static_cast<double>(mode == FanMode::In ? fan.in : fan.out);
  return terms == 0 ? 0 : std::sqrt(2 / ((1 + a * a) * terms));
}

double xavier_std(const Tensor& weight, double gain) {
  const Fan fan = fan_of(weight);
  const auto terms = static_cast<double>(fan.in + fan.out);
  return terms == 0 ? 0 : gain * std::sqrt(2 / terms);
}

/// A uniform distribution of this standard deviation.
const Tensor& uniform_of(const Tensor& weight, double std, Generator& generator) {
  const double bound = std::sqrt(3.0) * std;
  return uniform_(weight, -bound, bound, generator);
}

}  // namespace

const Tensor& constant_(const Tensor& tensor, double value) {
  const NoGradGuard guard;
  return tensor.fill_(value);
}

const Tensor& uniform_(const Tensor& tensor, double low, double high, Generator& generator) {
  const NoGradGuard guard;
  return tensor.copy_(rand(tensor.shape(), tensor.options(), generator) * (high - low) + low);
}

const Tensor& normal_(const Tensor& tensor, double mean, double std, Generator& generator) {
  const NoGradGuard guard;
  return tensor.copy_(randn(tensor.shape(), tensor.options(), generator) * std + mean);
}

Fan fan_of(const Tensor& weight) {
  if (weight.rank() < 2) fail("init: weight expected at least two axes [out, in, kernel...], got ", weight.shape());
  int64_t taps = 1;
  for (int i = 2; i < weight.rank(); ++i) taps *= weight.shape()[i];
  return {weight.size(1) * taps, weight.size(0) * taps};
}

const Tensor& xavier_uniform_(const Tensor& weight, double gain, Generator& generator) {
  return uniform_of(weight, xavier_std(weight, gain), generator);
}
const Tensor& xavier_normal_(const Tensor& weight, double gain, Generator& generator) {
  return normal_(weight, 0, xavier_std(weight, gain), generator);
}
const Tensor& kaiming_uniform_(const Tensor& weight, double a, FanMode mode, Generator& generator) {
  return uniform_of(weight, kaiming_std(weight, a, mode), generator);
}
const Tensor& kaiming_normal_(const Tensor& weight, double a, FanMode mode, Generator& generator) {
  return normal_(weight, 0, kaiming_std(weight, a, mode), generator);
}

}  // namespace halo::nn::init
