#include <halo/autograd/arithmetic.h>
#include <halo/autograd/node.h>
#include <halo/autograd/unary.h>
#include <halo/core/error.h>
#include <halo/ops/binary.h>
#include <halo/ops/reduce.h>

#include <cmath>
#include <limits>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;
using Grads = std::vector<Tensor>;

/// 1 where the mask holds, else 0, in `like`'s dtype.
Tensor indicator(const Tensor& mask, const Tensor& like) { return mask.to(like.dtype()); }

/// maximum and minimum: `wins` compares a with b.
Tensor extremum(const char* name, BinaryOp op, BinaryOp wins, const Tensor& a, const Tensor& b) {
  return record(name, {a, b}, ops::binary(op, a, b),
                [=, sa = SavedTensor(a), sb = SavedTensor(b)](const Tensor& g, const BackwardContext& context) {
                  const Tensor x = sa.unpack(context).detach(), y = sb.unpack(context).detach();
                  const Tensor tie = indicator(ops::binary(BinaryOp::Equal, x, y), g) * 0.5;
                  // A NaN operand won, so that the gradient is its.
                  const Tensor a_won =
                      ops::binary(BinaryOp::Or, ops::binary(wins, x, y), ops::binary(BinaryOp::NotEqual, x, x));
                  const Tensor share = indicator(a_won, g) + tie;
                  Grads grads(2);
                  if (context.needs(0)) grads[0] = sum_to(g * share, x.shape());
                  if (context.needs(1)) grads[1] = sum_to(g * (1.0 - share), y.shape());
                  return grads;
                });
}

}  // namespace

Tensor operator+(const Tensor& a, const Tensor& b) {
  const Tensor y = ops::binary(BinaryOp::Add, a, b);
  return record("add", {a, b}, y, [sa = a.shape(), sb = b.shape()](const Tensor& g, const BackwardContext& context) {
    Grads grads(2);
    if (context.needs(0)) grads[0] = sum_to(g, sa);
    if (context.needs(1)) grads[1] = sum_to(g, sb);
    return grads;
  });
}

Tensor operator-(const Tensor& a, const Tensor& b) {
  const Tensor y = ops::binary(BinaryOp::Sub, a, b);
  return record("sub", {a, b}, y, [sa = a.shape(), sb = b.shape()](const Tensor& g, const BackwardContext& context) {
    Grads grads(2);
    if (context.needs(0)) grads[0] = sum_to(g, sa);
    if (context.needs(1)) grads[1] = sum_to(-g, sb);
    return grads;
  });
}

Tensor operator*(const Tensor& a, const Tensor& b) {
  const Tensor y = ops::binary(BinaryOp::Mul, a, b);
  // Each factor is kept only for the other's gradient.
  const SavedTensor sa = b.requires_grad() ? SavedTensor(a) : SavedTensor();
  const SavedTensor sb = a.requires_grad() ? SavedTensor(b) : SavedTensor();
  return record("mul", {a, b}, y,
                [=, shape_a = a.shape(), shape_b = b.shape()](const Tensor& g, const BackwardContext& context) {
                  Grads grads(2);
                  if (context.needs(0)) grads[0] = sum_to(g * sb.unpack(context), shape_a);
                  if (context.needs(1)) grads[1] = sum_to(g * sa.unpack(context), shape_b);
                  return grads;
                });
}

Tensor operator/(const Tensor& a, const Tensor& b) {
  return record("div", {a, b}, ops::binary(BinaryOp::Div, a, b),
                [sa = SavedTensor(a), sb = SavedTensor(b)](const Tensor& g, const BackwardContext& context) {
                  const Tensor x = sa.unpack(context), y = sb.unpack(context);
                  Grads grads(2);
                  if (context.needs(0)) grads[0] = sum_to(g / y, x.shape());
                  if (context.needs(1)) grads[1] = sum_to(-(g * (x / (y * y))), y.shape());
                  return grads;
                });
}

Tensor maximum(const Tensor& a, const Tensor& b) {
  return extremum("maximum", BinaryOp::Maximum, BinaryOp::Greater, a, b);
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  return extremum("minimum", BinaryOp::Minimum, BinaryOp::Less, a, b);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const Tensor y = ops::where(condition, a, b);
  return record(
      "where", {a, b}, y,
      [sc = SavedTensor(condition), sa = a.shape(), sb = b.shape()](const Tensor& g, const BackwardContext& context) {
        const Tensor mask = sc.unpack(context), zero = zeros({}, g.options());
        Grads grads(2);
        if (context.needs(0)) grads[0] = sum_to(where(mask, g, zero), sa);
        if (context.needs(1)) grads[1] = sum_to(where(mask, zero, g), sb);
        return grads;
      });
}

namespace {

/// Whether tensors of an integer dtype (or bool) can hold the number.
template <class T>
bool holds(const Scalar& number) {
  constexpr auto kLowest = static_cast<int64_t>(std::numeric_limits<T>::min());
  constexpr auto kLargest = static_cast<int64_t>(std::numeric_limits<T>::max());
  if (number.integral) return number.integer >= kLowest && number.integer <= kLargest;
  // The bound behind the largest is a power of two, which a double has exactly.
  constexpr int64_t kHalfBound = kLargest / 2 + 1;
  return number.real == std::trunc(number.real) && number.real >= static_cast<double>(kLowest) &&
         number.real < 2 * static_cast<double>(kHalfBound);
}

Tensor compare(BinaryOp op, const Tensor& a, const Scalar& b) {
  check_defined(name(op), {{"a", a}});
  const bool fits = dispatch_dtype(a.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_integral_v<T>) return holds<T>(b);
    return true;  // rounded
  });
  if (!fits) {
    fail(name(op), ": number expected one that ", name(a.dtype()), " holds (the tensor's dtype), got ",
         b.integral ? concat(b.integer) : concat(b.real));
  }
  return ops::binary(op, a, full({}, b, a.options()));
}

/// 0 for a number, NaN for what is none or infinite.
Tensor difference_from_itself(const char* op, const Tensor& x) {
  check_defined(op, {{"input", x}});
  return ops::binary(BinaryOp::Sub, x, x);
}

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return ops::binary(BinaryOp::Equal, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return ops::binary(BinaryOp::NotEqual, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return ops::binary(BinaryOp::Less, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return ops::binary(BinaryOp::LessEqual, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return ops::binary(BinaryOp::Greater, a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return ops::binary(BinaryOp::GreaterEqual, a, b); }
Tensor eq(const Tensor& a, const Scalar& b) { return compare(BinaryOp::Equal, a, b); }
Tensor ne(const Tensor& a, const Scalar& b) { return compare(BinaryOp::NotEqual, a, b); }
Tensor lt(const Tensor& a, const Scalar& b) { return compare(BinaryOp::Less, a, b); }
Tensor le(const Tensor& a, const Scalar& b) { return compare(BinaryOp::LessEqual, a, b); }
Tensor gt(const Tensor& a, const Scalar& b) { return compare(BinaryOp::Greater, a, b); }
Tensor ge(const Tensor& a, const Scalar& b) { return compare(BinaryOp::GreaterEqual, a, b); }
Tensor isnan(const Tensor& x) {
  check_defined("isnan", {{"input", x}});
  return ops::binary(BinaryOp::NotEqual, x, x);
}
Tensor isfinite(const Tensor& x) { return logical_not(isnan(difference_from_itself("isfinite", x))); }
Tensor isinf(const Tensor& x) {
  const Tensor neither = isnan(difference_from_itself("isinf", x));
  return logical_and(neither, logical_not(isnan(x)));
}
Tensor logical_not(const Tensor& x) {
  check_defined("logical_not", {{"input", x}});
  return eq(x, 0);
}
Tensor logical_and(const Tensor& a, const Tensor& b) { return ops::binary(BinaryOp::And, a, b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return ops::binary(BinaryOp::Or, a, b); }

namespace {

/// `reduced` (without the axes of `dims`) stretched back over `shape`.
Tensor spread(const Tensor& reduced, const Shape& shape, const Shape& dims) {
  Shape with_ones = shape;
  for (int i = 0; i < shape.rank(); ++i) {
    if (dims.empty()) with_ones[i] = 1;
  }
  for (int64_t dim : dims) with_ones[normalize_axis("reduce", dim, shape.rank())] = 1;
  return reduced.reshape(with_ones).expand(shape);
}

Tensor extreme_value(const char* name, ReduceOp op, const Tensor& x, const Shape& dims, bool keepdim) {
  const Tensor y = ops::reduce(op, x, dims, keepdim);
  return record(name, {x}, y,
                [=, sx = SavedTensor(x), sy = SavedTensor::output(y)](const Tensor& g, const BackwardContext& context) {
                  const Tensor in = sx.unpack(context).detach(),
                               best = spread(sy.unpack(context).detach(), in.shape(), dims);
                  // Ties share; a NaN result is the NaN elements'.
                  const Tensor hit =
                      indicator(where(ops::binary(BinaryOp::NotEqual, best, best),
                                      ops::binary(BinaryOp::NotEqual, in, in), ops::binary(BinaryOp::Equal, in, best)),
                                g);
                  const Tensor ties = spread(ops::reduce(ReduceOp::Sum, hit, dims, true), in.shape(), dims);
                  return Grads{spread(g, in.shape(), dims) * (hit / ties)};
                });
}

}  // namespace

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim) {
  const Tensor y = ops::reduce(ReduceOp::Sum, x, dims, keepdim);
  return record("sum", {x}, y, [shape = x.shape(), dims](const Tensor& g, const BackwardContext&) {
    return Grads{spread(g, shape, dims)};
  });
}

Tensor mean(const Tensor& x, const Shape& dims, bool keepdim) {
  const Tensor y = ops::reduce(ReduceOp::Mean, x, dims, keepdim);
  const double count = y.numel() == 0 ? 1.0 : static_cast<double>(x.numel()) / static_cast<double>(y.numel());
  return record("mean", {x}, y, [shape = x.shape(), dims, count](const Tensor& g, const BackwardContext&) {
    return Grads{spread(g / count, shape, dims)};
  });
}

Tensor amax(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme_value("amax", ReduceOp::Max, x, dims, keepdim);
}
Tensor amin(const Tensor& x, const Shape& dims, bool keepdim) {
  return extreme_value("amin", ReduceOp::Min, x, dims, keepdim);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  check_defined("sum_to", {{"input", x}});
  if (x.shape() == shape) return x;
  return record("sum_to", {x}, ops::sum_to(x, shape),
                [from = x.shape()](const Tensor& g, const BackwardContext&) { return Grads{g.expand(from)}; });
}

Tensor Tensor::sum() const { return halo::sum(*this); }
Tensor Tensor::mean() const { return halo::mean(*this); }

}  // namespace halo
