#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/reduce.h>
#include <halo/ops/reduce_backend.h>

#include <array>

namespace halo::ops {

Tensor reduce(ReduceOp op, const Tensor& x, const Shape& dims, bool keepdim) {
  std::array<bool, kMaxRank> reduced{};
  for (int64_t dim : dims) reduced[static_cast<std::size_t>(normalize_axis("reduce", dim, x.rank()))] = true;
  if (dims.empty()) reduced.fill(true);
  Shape order, kept_shape, result_shape;
  int64_t count = 1;
  for (int i = 0; i < x.rank(); ++i) {
    if (reduced[static_cast<std::size_t>(i)]) {
      count *= x.shape()[i];
      if (keepdim) result_shape.push_back(1);
    } else {
      order.push_back(i);
      kept_shape.push_back(x.shape()[i]);
      result_shape.push_back(x.shape()[i]);
    }
  }
  const int kept = order.rank();
  for (int i = 0; i < x.rank(); ++i) {
    if (reduced[static_cast<std::size_t>(i)]) order.push_back(i);
  }
  if (op == ReduceOp::Mean && !is_floating_point(x.dtype())) {
    fail("mean: input expected a floating dtype, got ", x.describe());
  }
  if ((op == ReduceOp::Max || op == ReduceOp::Min) && count == 0) {
    fail("reduce: max and min expected at least one element to reduce, got ", x.describe());
  }
  // A sum of masks counts.
  const DType dtype = op == ReduceOp::Sum && x.dtype() == DType::Bool ? DType::Int64 : x.dtype();
  Tensor out = empty(kept_shape, {.dtype = dtype, .device = x.device()});
  const Tensor ordered = view::permute(x, order);
  switch (x.device().type) {
    case DeviceType::CPU: cpu::reduce(op, ordered, kept, out); break;
    case DeviceType::CUDA: cuda::reduce(op, ordered, kept, out); break;
  }
  return view::reshape(out, result_shape);
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int added = x.rank() - shape.rank();
  Shape dims;
  for (int i = 0; i < x.rank(); ++i) {
    if (i < added || (shape[i - added] == 1 && x.shape()[i] != 1)) dims.push_back(i);
  }
  return view::reshape(reduce(ReduceOp::Sum, x, dims, true), shape);
}

}  // namespace halo::ops
