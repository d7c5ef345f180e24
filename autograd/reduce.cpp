#include <halo/autograd/arithmetic.h>
#include <halo/autograd/node.h>
#include <halo/autograd/reduce.h>
#include <halo/autograd/unary.h>
#include <halo/core/error.h>
#include <halo/ops/reduce.h>
#include <halo/ops/unary.h>

#include <algorithm>
#include <cmath>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;
using Grads = std::vector<Tensor>;

/// A result with the reduced axes kept (so that it broadcasts against the input), without them where they are not
/// wanted.
Tensor finished(const Tensor& kept, const Tensor& x, const Shape& dims, bool keepdim) {
  if (keepdim) return kept;
  Shape shape, dropped;
  for (int64_t dim : dims) dropped.push_back(normalize_axis("reduce", dim, x.rank()));
  for (int i = 0; i < x.rank(); ++i) {
    if (!dims.empty() && std::find(dropped.begin(), dropped.end(), i) == dropped.end()) shape.push_back(x.shape()[i]);
  }
  return kept.reshape(shape);
}

/// g / y, and 0 where y is 0.
Tensor divided(const Tensor& g, const Tensor& y) {
  const Tensor flat = eq(y.detach(), 0);
  return where(flat, zeros({}, g.options()), g / where(flat, ones({}, y.options()), y));
}

/// Elements reduced to one, less 1 for the unbiased estimate.
double divisor(const Tensor& x, const Tensor& kept, bool unbiased) {
  const double count = kept.numel() == 0 ? 0 : static_cast<double>(x.numel()) / static_cast<double>(kept.numel());
  return count - (unbiased ? 1 : 0);
}

}  // namespace

Tensor var(const Tensor& x, const Shape& dims, bool unbiased, bool keepdim) {
  const Tensor y = ops::variance(x, dims, unbiased ? 1 : 0, true);
  const double n = divisor(x, y, unbiased);
  const Tensor kept =
      record("var", {x}, y, [=, saved = SavedTensor(x)](const Tensor& g, const BackwardContext& context) {
        const Tensor in = saved.unpack(context);
        return Grads{(in - mean(in, dims, true)) * (g * (2 / n))};
      });
  return finished(kept, x, dims, keepdim);
}

Tensor std(const Tensor& x, const Shape& dims, bool unbiased, bool keepdim) {
  const Tensor variance = ops::variance(x, dims, unbiased ? 1 : 0, true, "std");
  const double n = divisor(x, variance, unbiased);
  const Tensor y = ops::unary(UnaryOp::Sqrt, variance);
  const Tensor kept = record(
      "std", {x}, y,
      [=, saved = SavedTensor(x), result = SavedTensor::output(y)](const Tensor& g, const BackwardContext& context) {
        const Tensor in = saved.unpack(context);
        return Grads{(in - mean(in, dims, true)) * divided(g / n, result.unpack(context))};
      });
  return finished(kept, x, dims, keepdim);
}

Tensor logsumexp(const Tensor& x, const Shape& dims, bool keepdim) {
  const Tensor y = ops::reduce(ReduceOp::LogSumExp, x, dims, true);
  const Tensor kept = record(
      "logsumexp", {x}, y,
      [saved = SavedTensor(x), result = SavedTensor::output(y)](const Tensor& g, const BackwardContext& context) {
        const Tensor in = saved.unpack(context), sum = result.unpack(context);
        // Of nothing but -inf no element has a share.
        const Tensor none = eq(sum.detach(), -INFINITY);
        return Grads{g * exp(in - where(none, zeros({}, sum.options()), sum))};
      });
  return finished(kept, x, dims, keepdim);
}

Tensor norm(const Tensor& x, double p, const Shape& dims, bool keepdim) {
  check_floating("norm", {{"input", x}});
  for (const int64_t dim : dims) normalize_axis("norm", dim, x.rank());
  if (p == 1) return sum(abs(x), dims, keepdim);
  if (p == INFINITY) return amax(abs(x), dims, keepdim);
  if (p != 2) fail("norm: p expected 1, 2 or infinity, got ", p);
  const Tensor y = ops::reduce(ReduceOp::Norm, x, dims, true);
  const Tensor kept = record(
      "norm", {x}, y,
      [saved = SavedTensor(x), result = SavedTensor::output(y)](const Tensor& g, const BackwardContext& context) {
        return Grads{saved.unpack(context) * divided(g, result.unpack(context))};
      });
  return finished(kept, x, dims, keepdim);
}

Tensor any(const Tensor& x, const Shape& dims, bool keepdim) { return ops::reduce(ReduceOp::Any, x, dims, keepdim); }
Tensor all(const Tensor& x, const Shape& dims, bool keepdim) { return ops::reduce(ReduceOp::All, x, dims, keepdim); }

}  // namespace halo
