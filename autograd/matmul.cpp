#include <halo/autograd/arithmetic.h>
#include <halo/autograd/matmul.h>
#include <halo/autograd/node.h>
#include <halo/core/error.h>
#include <halo/ops/matmul.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;

/// The product of all extents but the last.
int64_t rows_of(const Tensor& t) {
  int64_t rows = 1;
  for (int axis = 0; axis < t.rank() - 1; ++axis) rows *= t.shape()[axis];
  return rows;
}

/// `shape` with another last extent.
Shape with_last(Shape shape, int64_t extent) {
  shape[shape.rank() - 1] = extent;
  return shape;
}

/// Operands of at least two axes.
Tensor product(const Tensor& a, const Tensor& b) {
  if (a.rank() > 2 && b.rank() == 2 && a.size(-1) == b.size(0)) {
    // One matrix for the whole batch: its rows are the rows of one product.
    return product(a.reshape({rows_of(a), a.size(-1)}), b).reshape(with_last(a.shape(), b.size(1)));
  }
  const SavedTensor sa = b.requires_grad() ? SavedTensor(a) : SavedTensor();
  const SavedTensor sb = a.requires_grad() ? SavedTensor(b) : SavedTensor();
  return record("matmul", {a, b}, ops::matmul(a, b),
                [=, shape_a = a.shape(), shape_b = b.shape()](const Tensor& g, const BackwardContext& context) {
                  std::vector<Tensor> grads(2);
                  if (context.needs(0)) grads[0] = sum_to(product(g, sb.unpack(context).transpose(-1, -2)), shape_a);
                  if (context.needs(1)) grads[1] = sum_to(product(sa.unpack(context).transpose(-1, -2), g), shape_b);
                  return grads;
                });
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_defined("matmul", {{"input", a}, {"other", b}});
  if (a.rank() == 0 || b.rank() == 0) {
    fail("matmul: operands expected at least one axis, got ", a.describe(), " and ", b.describe());
  }
  const Tensor left = a.rank() == 1 ? a.unsqueeze(0) : a, right = b.rank() == 1 ? b.unsqueeze(1) : b;
  Tensor c = product(left, right);
  if (b.rank() == 1) c = c.squeeze(-1);
  if (a.rank() == 1) c = c.squeeze(b.rank() == 1 ? -1 : -2);
  return c;
}

Tensor linear(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  check_defined("linear", {{"input", input}, {"weight", weight}});
  if (input.rank() == 0 || weight.rank() != 2 || input.size(-1) != weight.size(1)) {
    fail("linear: input and weight expected [..., in] and [out, in], got ", input.shape(), " and ", weight.shape());
  }
  const Tensor x = input.reshape({rows_of(input), input.size(-1)});
  const SavedTensor sx = weight.requires_grad() ? SavedTensor(x) : SavedTensor();
  const SavedTensor sw = input.requires_grad() ? SavedTensor(weight) : SavedTensor();
  const Tensor y = record("linear", {x, weight, bias}, ops::linear(x, weight, bias),
                          [=](const Tensor& g, const BackwardContext& context) {
                            std::vector<Tensor> grads(3);
                            if (context.needs(0)) grads[0] = matmul(g, sw.unpack(context));
                            if (context.needs(1)) grads[1] = matmul(g.transpose(0, 1), sx.unpack(context));
                            if (context.needs(2)) grads[2] = sum(g, {0});
                            return grads;
                          });
  return y.reshape(with_last(input.shape(), weight.size(0)));
}

}  // namespace halo
