#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/binary.h>
#include <halo/ops/index.h>
#include <halo/ops/index_backend.h>

#include "cpu/position.h"

namespace halo::ops {
namespace {

/// Index and data of gather: equal rank, and no axis but `axis` where index is longer.
void check_lines(const char* op, const Shape& shape, int axis, const Tensor& index) {
  bool fits = index.rank() == shape.rank();
  for (int i = 0; fits && i < shape.rank(); ++i) fits = i == axis || index.shape()[i] <= shape[i];
  if (!fits) {
    fail(op, ": index expected the rank of ", shape, " and at most its extents but for dim ", axis, ", got ",
         index.shape());
  }
}

}  // namespace

Tensor index_tensor(const char* op, const char* argument, const Tensor& index, Device device) {
  check_defined(op, {{argument, index}});
  const DType dtype = index.dtype();
  const bool integer = dtype == DType::Int64 || dtype == DType::Int32 || dtype == DType::UInt8;
  if (!integer || index.device() != device) {
    fail(op, ": ", argument, " expected int64, int32 or uint8 on ", device, ", got ", index.describe());
  }
  return view::dense(convert(index, DType::Int64, device));
}

Tensor index_select(const char* op, const Tensor& x, int64_t dim, const Tensor& index) {
  const int axis = normalize_axis(op, dim, x.rank());
  const Tensor at = index_tensor(op, "index", index, x.device());
  Shape shape = x.shape();
  shape[axis] = at.numel();
  Tensor y = empty(shape, x.options());
  const Tensor dense_x = view::dense(x);
  run_backend<HalfKernels::Everywhere>("index_select", x.device(), cpu::index_select, cuda::index_select, op, dense_x,
                                       axis, at, writes(y));
  return y;
}

Tensor index_add(const char* op, const Tensor& g, int64_t dim, const Tensor& index, int64_t extent) {
  const int axis = normalize_axis(op, dim, g.rank());
  const Tensor at = index_tensor(op, "index", index, g.device());
  if (g.shape()[axis] != at.numel()) {
    fail(op, ": source expected ", at.numel(), " slices along dim ", axis, " (one an index), got ", g.shape());
  }
  Shape shape = g.shape();
  shape[axis] = extent;
  Tensor y = empty(shape, g.options());
  const Tensor dense_g = view::dense(g);
  run_backend<HalfKernels::Cuda>("index_add", g.device(), cpu::index_add, cuda::index_add, op, dense_g, axis, at,
                                 writes(y));
  return y;
}

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  constexpr const char* op = "gather";
  check_defined(op, {{"input", x}});
  const int axis = normalize_axis(op, dim, x.rank());
  const Tensor at = index_tensor(op, "index", index, x.device());
  check_lines(op, x.shape(), axis, at);
  Tensor y = empty(at.shape(), x.options());
  const Tensor dense_x = view::dense(x);
  run_backend<HalfKernels::Everywhere>("gather", x.device(), cpu::gather, cuda::gather, op, dense_x, axis, at,
                                       writes(y));
  return y;
}

Tensor scatter_add(const Tensor& g, int64_t dim, const Tensor& index, const Shape& shape) {
  constexpr const char* op = "scatter_add";
  const int axis = normalize_axis(op, dim, shape.rank());
  const Tensor at = index_tensor(op, "index", index, g.device());
  check_lines(op, shape, axis, at);
  if (g.shape() != at.shape()) fail(op, ": src expected index's shape ", at.shape(), ", got ", g.shape());
  Tensor y = empty(shape, g.options());
  const Tensor dense_g = view::dense(g);
  run_backend("scatter_add", g.device(), cpu::scatter_add, cuda::scatter_add, op, dense_g, axis, at, writes(y));
  return y;
}

Tensor one_hot(const Tensor& index, int64_t classes) {
  if (classes < 0) fail("one_hot: num_classes expected 0 or more, got ", classes);
  check_defined("one_hot", {{"indices", index}});
  const Tensor at = index_tensor("one_hot", "indices", index, index.device());
  if (at.device().is_cpu()) cpu::check_indices("one_hot", at, classes);
  const Tensor each = arange(classes, {.dtype = DType::Int64, .device = index.device()});
  return convert(binary(BinaryOp::Equal, view::unsqueeze(at, -1), each), DType::Int64, index.device());
}

}  // namespace halo::ops
