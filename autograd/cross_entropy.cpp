#include <halo/autograd/arithmetic.h>
#include <halo/autograd/cross_entropy.h>
#include <halo/autograd/index.h>
#include <halo/autograd/node.h>
#include <halo/autograd/softmax.h>
#include <halo/ops/binary.h>
#include <halo/ops/cross_entropy.h>
#include <halo/ops/index.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;

/// Where the target is ignore_index: bool, of the target's shape.
Tensor ignored(const ClassLoss& loss, const Tensor& labels) {
  return eq(labels, full({}, loss.ignore_index, labels.options()));
}

/// The target distribution q that ops/cross_entropy_backend.h describes, dense: [N, C, d...]; 0 where ignored.
Tensor distribution(const ClassLoss& loss, const Tensor& x, const Tensor& labels, const Tensor& weight) {
  const int64_t classes = x.size(1);
  const Tensor hard = eq(labels.unsqueeze(-1), arange(classes, labels.options())).to(x.dtype());  // [N, d..., C]
  Tensor q = hard * (1 - loss.label_smoothing) + loss.label_smoothing / static_cast<double>(classes);
  if (weight.defined()) q = q * weight.detach();
  Shape order{0, x.rank() - 1};
  for (int axis = 1; axis < x.rank() - 1; ++axis) order.push_back(axis);
  return masked_fill(q.permute(order), ignored(loss, labels).unsqueeze(1), 0);
}

/// The gradient of recorded functions, for when it is differentiated again.
Tensor recorded_gradient(const char* op, const ClassLoss& loss, const Tensor& x, const Tensor& target,
                         const Tensor& weight, const Tensor& g) {
  const Tensor labels = ops::index_tensor(op, "target", target, x.device());
  const Tensor q = distribution(loss, x, labels, weight), up = g.unsqueeze(1);
  if (loss.log_probabilities) return -(up * q);
  const Tensor p = softmax(masked_fill(x, ignored(loss, labels).unsqueeze(1), 0), 1);  // x may be NaN where ignored
  return up * (sum(q, {1}, true) * p - q);
}

/// Losses of the positions, and what each counts.
struct Losses {
  Tensor loss, counted;
};

Losses losses(const char* op, const ClassLoss& loss, const Tensor& x, const Tensor& target, const Tensor& weight) {
  const auto result = ops::cross_entropy(op, loss, x, target, weight);
  const Tensor recorded =
      record(op, {x}, result.loss,
             [=, sx = SavedTensor(x), st = SavedTensor(target), sw = SavedTensor(weight), lse = result.lse](
                 const Tensor& g, const BackwardContext& context) {
               const Tensor in = sx.unpack(context), labels = st.unpack(context), weights = sw.unpack(context);
               return std::vector<Tensor>{context.create_graph
                                              ? recorded_gradient(op, loss, in, labels, weights, g)
                                              : ops::cross_entropy_backward(op, loss, in, labels, weights, lse, g)};
             });
  return {recorded, result.counted};
}

Tensor reduced(const char* op, const Losses& losses, Reduction reduction) {
  if (reduction == Reduction::None) return losses.loss;
  if (reduction == Reduction::Sum) return losses.loss.sum();
  const auto result = ops::mean_loss(losses.loss, losses.counted);
  return record(op, {losses.loss}, result.mean,
                [share = result.share, shape = losses.loss.shape()](const Tensor& g, const BackwardContext&) {
                  return std::vector<Tensor>{(g * share).expand(shape)};
                });
}

}  // namespace

Tensor cross_entropy(const Tensor& input, const Tensor& target, const CrossEntropyOptions& options) {
  const ClassLoss loss{.ignore_index = options.ignore_index, .label_smoothing = options.label_smoothing};
  constexpr const char* op = "cross_entropy";
  return reduced(op, losses(op, loss, input, target, options.weight), options.reduction);
}

Tensor nll_loss(const Tensor& input, const Tensor& target, const NllLossOptions& options) {
  const ClassLoss loss{.log_probabilities = true, .ignore_index = options.ignore_index};
  constexpr const char* op = "nll_loss";
  return reduced(op, losses(op, loss, input, target, options.weight), options.reduction);
}

}  // namespace halo
