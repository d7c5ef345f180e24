// In-place changes that core/tensor.h declares. They are not recorded, so that they are refused where a gradient would
// silently be wrong; each counts a new version of the storage, which tells backward that a saved value was changed.
#include <halo/autograd/grad_mode.h>
#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/binary.h>
#include <halo/ops/unary.h>

namespace halo {
namespace {

void begin_change(const char* op, const Tensor& tensor) {
  if (grad_enabled() && tensor.requires_grad()) {
    fail(op, ": expected a tensor without requires_grad, got ", tensor.describe(),
         " with it; in-place changes are not recorded (use NoGradGuard, or the function that returns a new tensor)");
  }
  for (int i = 0; i < tensor.rank(); ++i) {
    if (tensor.shape()[i] > 1 && tensor.strides()[i] == 0) {
      fail(op, ": expected elements with memory of their own, got an expanded view ", tensor.describe());
    }
  }
  tensor.storage()->bump_version();
}

void refuse_recorded_source(const char* op, const Tensor& source) {
  if (grad_enabled() && source.requires_grad()) {
    fail(op, ": source expected no requires_grad (its gradient would be lost), got ", source.describe());
  }
}

}  // namespace

const Tensor& Tensor::copy_(const Tensor& source) const {
  check_defined("copy_", {{"self", *this}, {"source", source}});
  refuse_recorded_source("copy_", source);
  const Tensor wide = view::expand(source, shape(), "copy_");
  begin_change("copy_", *this);
  // A source that shares this memory is read before anything is written.
  copy(source.storage() == storage() ? view::dense(convert(wide, wide.dtype(), wide.device())) : wide, *this);
  return *this;
}

const Tensor& Tensor::fill_(const Scalar& value) const {
  begin_change("fill_", *this);
  fill(*this, value);
  return *this;
}

const Tensor& Tensor::add_(const Tensor& other, double alpha) const {
  check_same_dtype_and_device("add_", {{"self", *this}, {"other", other}});
  refuse_recorded_source("add_", other);
  const Tensor scaled = alpha == 1 ? other : ops::unary(UnaryOp::Scale, other, {alpha}, "add_");
  const Tensor sum = ops::binary(BinaryOp::Add, *this, view::expand(scaled, shape(), "add_"));
  begin_change("add_", *this);
  copy(sum, *this);
  return *this;
}

const Tensor& Tensor::mul_(double factor) const {
  const Tensor product = ops::unary(UnaryOp::Scale, *this, {factor}, "mul_");
  begin_change("mul_", *this);
  copy(product, *this);
  return *this;
}

}  // namespace halo
