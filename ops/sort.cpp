#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/sort.h>
#include <halo/ops/sort_backend.h>

namespace halo::ops {
namespace {

/// x with `dim` last, dense; a rank of 0 becomes one element.
Tensor rows_of(const char* op, const Tensor& x, int64_t dim) {
  check_defined(op, {{"input", x}});
  if (x.rank() == 0) return view::reshape(x, {1});
  return view::dense(view::transpose(x, normalize_axis(op, dim, x.rank()), -1));
}

/// Puts the last axis of a result back to `dim`.
Tensor back(const Tensor& rows, const Tensor& x, int64_t dim) {
  if (x.rank() == 0) return view::reshape(rows, {});
  return view::dense(view::transpose(rows, dim, -1));
}

}  // namespace

SortResult sort(const Tensor& x, int64_t dim, bool descending) {
  const Tensor rows = rows_of("sort", x, dim);
  const Tensor values = empty_like(rows), indices = empty(rows.shape(), {.dtype = DType::Int64, .device = x.device()});
  run_backend("sort", x.device(), cpu::sort, cuda::sort, rows, descending, writes(values), writes(indices));
  return {back(values, x, dim), back(indices, x, dim)};
}

SortResult topk(const Tensor& x, int64_t k, int64_t dim, bool largest) {
  const Tensor rows = rows_of("topk", x, dim);
  Shape shape = rows.shape();
  if (k < 0 || k > shape.back()) {
    fail("topk: k expected from 0 to ", shape.back(), " (the extent of dim ", dim, " of ", x.shape(), "), got ", k);
  }
  shape[shape.rank() - 1] = k;
  const Tensor values = empty(shape, x.options());
  const Tensor indices = empty(shape, {.dtype = DType::Int64, .device = x.device()});
  run_backend("topk", x.device(), cpu::topk, cuda::topk, rows, largest, writes(values), writes(indices));
  return {back(values, x, dim), back(indices, x, dim)};
}

Tensor arg_extreme(const char* op, const Tensor& x, bool largest, std::optional<int64_t> dim, bool keepdim) {
  check_defined(op, {{"input", x}});
  const Tensor rows = dim ? rows_of(op, x, *dim) : view::reshape(x, {x.numel()});
  Shape shape = rows.shape();
  if (shape.back() == 0) fail(op, ": input expected at least one element to choose from, got ", x.describe());
  shape.erase(shape.rank() - 1);
  const Tensor indices = empty(shape, {.dtype = DType::Int64, .device = x.device()});
  const Tensor dense_rows = view::dense(rows);
  run_backend("arg_extreme", x.device(), cpu::arg_extreme, cuda::arg_extreme, dense_rows, largest, writes(indices));
  Shape kept = x.shape();
  if (!dim) {
    kept = Shape::filled(keepdim ? x.rank() : 0, 1);
    return view::reshape(indices, kept);
  }
  if (x.rank() == 0) return view::reshape(indices, {});
  const Tensor placed = back(view::unsqueeze(indices, -1), x, *dim);
  return keepdim ? placed : view::squeeze(placed, *dim);
}

}  // namespace halo::ops
