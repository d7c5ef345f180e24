#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/cross_entropy.h>
#include <halo/ops/cross_entropy_backend.h>
#include <halo/ops/index.h>

namespace halo::ops {
namespace {

Shape without_classes(Shape shape) {
  shape.erase(1);
  return shape;
}

/// Checks everything but the labels, which the backend reads; returns them dense and as int64.
Tensor checked_target(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                      const Tensor& weight) {
  check_defined(op, {{"target", target}});
  check_floating(op, {{"input", x}, {"weight", weight, kOptional}});
  if (x.rank() < 2) fail(op, ": input expected [N, C] or [N, C, d...], got ", x.describe());
  if (target.shape() != without_classes(x.shape())) {
    fail(op, ": target expected shape ", without_classes(x.shape()), " (input ", x.shape(), "), got ", target.shape());
  }
  if (weight.defined() && weight.shape() != Shape{x.size(1)}) {
    fail(op, ": weight expected shape ", Shape{x.size(1)}, " (one a class), got ", weight.shape());
  }
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    fail(op, ": label_smoothing expected from 0 to 1, got ", options.label_smoothing);
  }
  return index_tensor(op, "target", target, x.device());
}

}  // namespace

ClassLossResult cross_entropy(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                              const Tensor& weight) {
  const Tensor labels = checked_target(op, options, x, target, weight);
  const Tensor loss = empty(labels.shape(), x.options()), counted = empty(labels.shape(), x.options());
  const Tensor lse = empty(labels.shape(), {.dtype = DType::Float64, .device = x.device()});
  const Tensor dense_x = view::dense(x), dense_weight = view::dense_or_undefined(weight);
  run_backend<HalfKernels::Cuda>("cross_entropy", x.device(), cpu::cross_entropy, cuda::cross_entropy, op, options,
                                 dense_x, labels, dense_weight, writes(loss), writes(lse), writes(counted));
  return {loss, lse, counted};
}

Tensor cross_entropy_backward(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                              const Tensor& weight, const Tensor& lse, const Tensor& g) {
  const Tensor labels = checked_target(op, options, x, target, weight);
  check_same_dtype_and_device(op, {{"input", x}, {"grad_output", g}});
  if (g.shape() != labels.shape() || lse.shape() != labels.shape()) {
    fail(op, ": grad_output and lse expected shape ", labels.shape(), ", got ", g.shape(), " and ", lse.shape());
  }
  const Tensor dx = empty(x.shape(), x.options());
  const Tensor dense_x = view::dense(x), dense_weight = view::dense_or_undefined(weight), up = view::dense(g);
  run_backend<HalfKernels::Cuda>("cross_entropy_backward", x.device(), cpu::cross_entropy_backward,
                                 cuda::cross_entropy_backward, op, options, dense_x, labels, dense_weight, lse, up,
                                 writes(dx));
  return dx;
}

MeanLoss mean_loss(const Tensor& loss, const Tensor& counted) {
  constexpr const char* op = "mean_loss";
  check_same_dtype_and_device(op, {{"loss", loss}, {"counted", counted}});
  if (loss.shape() != counted.shape()) {
    fail(op, ": counted expected shape ", loss.shape(), ", got ", counted.shape());
  }
  const MeanLoss result{empty({}, loss.options()), empty({}, loss.options())};
  run_backend<HalfKernels::Cuda>(op, loss.device(), cpu::mean_loss, cuda::mean_loss, view::dense(loss),
                                 view::dense(counted), writes(result.mean), writes(result.share));
  return result;
}

}  // namespace halo::ops
