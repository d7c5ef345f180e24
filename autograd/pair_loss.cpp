#include <halo/autograd/arithmetic.h>
#include <halo/autograd/node.h>
#include <halo/autograd/pair_loss.h>
#include <halo/autograd/unary.h>
#include <halo/core/error.h>
#include <halo/ops/pair_loss.h>
#include <halo/ops/unary.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;

/// df/dx or df/dt of recorded functions, for gradients that are differentiated again.
Tensor slope(PairLoss op, double delta, bool to_target, const Tensor& x, const Tensor& t) {
  const Tensor d = to_target ? t - x : x - t;
  switch (op) {
    case PairLoss::Mse: return d * 2.0;
    case PairLoss::L1: return ops::unary_derivative(UnaryOp::Abs, 1, ones_like(d), d);  // flat: a constant
    case PairLoss::Huber: return clamp(d, -delta, delta);
    case PairLoss::BinaryCrossEntropy: return to_target ? -x : sigmoid(x) - t;
  }
  fail<InternalError>("slope: unknown loss");
}

Tensor loss(const char* name, PairLoss op, const Tensor& x, const Tensor& t, Reduction reduction, double delta = 1) {
  return record(name, {x, t}, ops::pair_loss(name, op, delta, reduction, x, t),
                [=, sx = SavedTensor(x), st = SavedTensor(t)](const Tensor& g, const BackwardContext& context) {
                  const Tensor in = sx.unpack(context), target = st.unpack(context);
                  const Tensor share = reduction == Reduction::Mean ? g / static_cast<double>(in.numel()) : g;
                  const Tensor up = share.expand(in.shape());
                  std::vector<Tensor> grads(2);
                  for (std::size_t i = 0; i < 2; ++i) {
                    if (!context.needs(i)) continue;
                    grads[i] = context.create_graph ? up * slope(op, delta, i == 1, in, target)
                                                    : ops::pair_loss_backward(op, delta, i == 1, up, in, target);
                  }
                  return grads;
                });
}

}  // namespace

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  return loss("mse_loss", PairLoss::Mse, input, target, reduction);
}
Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  return loss("l1_loss", PairLoss::L1, input, target, reduction);
}
Tensor huber_loss(const Tensor& input, const Tensor& target, Reduction reduction, double delta) {
  return loss("huber_loss", PairLoss::Huber, input, target, reduction, delta);
}
Tensor binary_cross_entropy_with_logits(const Tensor& input, const Tensor& target, Reduction reduction) {
  return loss("binary_cross_entropy_with_logits", PairLoss::BinaryCrossEntropy, input, target, reduction);
}

}  // namespace halo
