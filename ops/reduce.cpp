#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/reduce.h>
#include <halo/ops/reduce_backend.h>

#include <array>

namespace halo {

const char* name(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum: return "sum";
    case ReduceOp::Mean: return "mean";
    case ReduceOp::Max: return "amax";
    case ReduceOp::Min: return "amin";
    case ReduceOp::LogSumExp: return "logsumexp";
    case ReduceOp::Norm: return "norm";
    case ReduceOp::Any: return "any";
    case ReduceOp::All: return "all";
  }
  fail<InternalError>("name: unknown ReduceOp");
}

namespace ops {
namespace {

/// x with the kept axes in front, and the shapes of the result.
struct Plan {
  Tensor ordered;
  int kept;
  Shape kept_shape, result_shape;
  int64_t count = 1;  ///< elements that make one result
};

Plan plan_of(const char* op, const Tensor& x, const Shape& dims, bool keepdim) {
  check_defined(op, {{"input", x}});
  std::array<bool, kMaxRank> reduced{};
  for (int64_t dim : dims) reduced[static_cast<std::size_t>(normalize_axis(op, dim, x.rank()))] = true;
  if (dims.empty()) reduced.fill(true);
  Plan plan;
  Shape order;
  for (int i = 0; i < x.rank(); ++i) {
    if (reduced[static_cast<std::size_t>(i)]) {
      plan.count *= x.shape()[i];
      if (keepdim) plan.result_shape.push_back(1);
    } else {
      order.push_back(i);
      plan.kept_shape.push_back(x.shape()[i]);
      plan.result_shape.push_back(x.shape()[i]);
    }
  }
  plan.kept = order.rank();
  for (int i = 0; i < x.rank(); ++i) {
    if (reduced[static_cast<std::size_t>(i)]) order.push_back(i);
  }
  plan.ordered = view::permute(x, order);
  return plan;
}

DType result_dtype(ReduceOp op, DType dtype) {
  if (op == ReduceOp::Any || op == ReduceOp::All) return DType::Bool;
  // A sum of masks counts.
  return op == ReduceOp::Sum && dtype == DType::Bool ? DType::Int64 : dtype;
}

}  // namespace

Tensor reduce(ReduceOp op, const Tensor& x, const Shape& dims, bool keepdim) {
  const Plan plan = plan_of(name(op), x, dims, keepdim);
  const bool floating = op == ReduceOp::Mean || op == ReduceOp::LogSumExp || op == ReduceOp::Norm;
  if (floating && !is_floating_point(x.dtype())) {
    fail(name(op), ": input expected a floating dtype, got ", x.describe());
  }
  if ((op == ReduceOp::Max || op == ReduceOp::Min) && plan.count == 0) {
    fail(name(op), ": input expected at least one element to reduce, got ", x.describe());
  }
  Tensor out = empty(plan.kept_shape, {.dtype = result_dtype(op, x.dtype()), .device = x.device()});
  run_backend<HalfKernels::Cuda>(name(op), x.device(), cpu::reduce, cuda::reduce, op, plan.ordered, plan.kept,
                                 writes(out));
  return view::reshape(out, plan.result_shape);
}

Tensor variance(const Tensor& x, const Shape& dims, double correction, bool keepdim, const char* op) {
  const Plan plan = plan_of(op, x, dims, keepdim);
  if (!is_floating_point(x.dtype())) fail(op, ": input expected a floating dtype, got ", x.describe());
  Tensor out = empty(plan.kept_shape, x.options());
  run_backend<HalfKernels::Cuda>(op, x.device(), cpu::variance, cuda::variance, plan.ordered, plan.kept, correction,
                                 writes(out));
  return view::reshape(out, plan.result_shape);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  if (broadcast_shapes("sum_to", x.shape(), shape) != x.shape()) {
    fail("sum_to: shape expected to broadcast to ", x.shape(), ", got ", shape);
  }
  const int added = x.rank() - shape.rank();
  Shape dims;
  for (int i = 0; i < x.rank(); ++i) {
    if (i < added || (shape[i - added] == 1 && x.shape()[i] != 1)) dims.push_back(i);
  }
  return view::reshape(reduce(ReduceOp::Sum, x, dims, true), shape);
}

}  // namespace ops
}  // namespace halo
