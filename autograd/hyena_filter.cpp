#include <halo/autograd/arithmetic.h>
#include <halo/autograd/composed.h>
#include <halo/autograd/hyena_filter.h>
#include <halo/autograd/node.h>
#include <halo/autograd/unary.h>
#include <halo/ops/hyena_filter.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;
using Grads = std::vector<Tensor>;

Tensor windowed(const DecayWindow& window, const Tensor& x) {
  return record("decay_window", {x}, ops::decay_window(window, x),
                [=](const Tensor& g, const BackwardContext&) { return Grads{windowed(window, g)}; });
}

}  // namespace

Tensor bias_sine(const Tensor& x, const Tensor& bias, const Tensor& frequency) {
  return record("bias_sine", {x, bias, frequency}, ops::bias_sine_forward(x, bias, frequency),
                [sx = SavedTensor(x), sb = SavedTensor(bias), sf = SavedTensor(frequency)](
                    const Tensor& g, const BackwardContext& context) {
                  const Tensor in = sx.unpack(context), b = sb.unpack(context), f = sf.unpack(context);
                  if (context.create_graph) {
                    return autograd::composed_grads(
                        [](const Grads& t) { return Grads{sin(t[2].unsqueeze(-1) * (t[0] + t[1].unsqueeze(-1)))}; },
                        {in, b, f}, {g});
                  }
                  const BiasSineGrads grads = ops::bias_sine_backward(g, in, b, f);
                  return Grads{grads.x, grads.bias, grads.frequency};
                });
}

Tensor decay_window(const Tensor& x, const Tensor& time, const Tensor& decay, double shift) {
  check_defined("decay_window", {{"input", x}, {"time", time}, {"decay", decay}});
  return windowed({time.detach(), decay.detach(), shift}, x);
}

}  // namespace halo
