#include <halo/autograd/arithmetic.h>
#include <halo/autograd/index.h>
#include <halo/autograd/node.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/index.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;
using Grads = std::vector<Tensor>;

// Each pair is a linear map and its adjoint, so that they close under differentiation.

Tensor add_slices(const char* op, const Tensor& g, int64_t dim, const Tensor& index, int64_t extent);

Tensor select_slices(const char* op, const Tensor& x, int64_t dim, const Tensor& index) {
  return record(op, {x}, ops::index_select(op, x, dim, index),
                [=, at = SavedTensor(index), extent = x.size(dim)](const Tensor& g, const BackwardContext& context) {
                  return Grads{add_slices(op, g, dim, at.unpack(context), extent)};
                });
}

Tensor add_slices(const char* op, const Tensor& g, int64_t dim, const Tensor& index, int64_t extent) {
  return record(op, {g}, ops::index_add(op, g, dim, index, extent),
                [=, at = SavedTensor(index)](const Tensor& up, const BackwardContext& context) {
                  return Grads{select_slices(op, up, dim, at.unpack(context))};
                });
}

Tensor add_elements(const Tensor& g, int64_t dim, const Tensor& index, const Shape& shape) {
  return record("scatter_add", {g}, ops::scatter_add(g, dim, index, shape),
                [dim, at = SavedTensor(index)](const Tensor& up, const BackwardContext& context) {
                  return Grads{gather(up, dim, at.unpack(context))};
                });
}

/// The same values; the gradient of row `row` is dropped.
Tensor without_gradient_of_row(const Tensor& weight, int64_t row) {
  return record("padding_idx", {weight}, view::alias(weight),
                [row, entries = weight.size(0)](const Tensor& g, const BackwardContext&) {
                  const TensorOptions numbers{.dtype = DType::Int64, .device = g.device()};
                  const Tensor mask = eq(arange(entries, numbers), row);
                  return Grads{masked_fill(g, mask.unsqueeze(1), 0)};
                });
}

}  // namespace

namespace {
void check_vector(const char* op, const Tensor& index) {
  check_defined(op, {{"index", index}});
  if (index.rank() != 1) fail(op, ": index expected one axis, got ", index.describe());
}
}  // namespace

Tensor index_select(const Tensor& x, int64_t dim, const Tensor& index) {
  check_defined("index_select", {{"input", x}});
  check_vector("index_select", index);
  normalize_axis("index_select", dim, x.rank());
  return select_slices("index_select", x, dim, index);
}

Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  constexpr const char* op = "index_add";
  check_same_dtype_and_device(op, {{"input", x}, {"source", source}});
  check_vector(op, index);
  const int axis = normalize_axis(op, dim, x.rank());
  Shape expected = x.shape();
  expected[axis] = index.numel();
  if (source.shape() != expected) {
    fail(op, ": source expected shape ", expected, " (one slice an index), got ", source.shape());
  }
  return x + add_slices(op, source, axis, index, x.shape()[axis]);
}

Tensor gather(const Tensor& x, int64_t dim, const Tensor& index) {
  const Tensor y = ops::gather(x, dim, index);
  return record("gather", {x}, y,
                [=, at = SavedTensor(index), shape = x.shape()](const Tensor& g, const BackwardContext& context) {
                  return Grads{add_elements(g, dim, at.unpack(context), shape)};
                });
}

Tensor scatter_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& src) {
  check_same_dtype_and_device("scatter_add", {{"input", x}, {"src", src}});
  return x + add_elements(src, dim, index, x.shape());
}

Tensor embedding(const Tensor& indices, const Tensor& weight, std::optional<int64_t> padding_idx) {
  constexpr const char* op = "embedding";
  check_defined(op, {{"indices", indices}, {"weight", weight}});
  if (weight.rank() != 2) fail(op, ": weight expected [entries, width], got ", weight.describe());
  Tensor rows = weight;
  if (padding_idx) {
    const int64_t entries = weight.size(0), row = *padding_idx < 0 ? *padding_idx + entries : *padding_idx;
    if (row < 0 || row >= entries) {
      fail(op, ": padding_idx expected from ", -entries, " to ", entries - 1, ", got ", *padding_idx);
    }
    rows = without_gradient_of_row(weight, row);
  }
  Shape shape = indices.shape();
  shape.push_back(weight.size(1));
  return select_slices(op, rows, 0, indices).reshape(shape);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  check_defined("masked_fill", {{"input", x}, {"mask", mask}});
  if (broadcast_shapes("masked_fill", x.shape(), mask.shape()) != x.shape()) {
    fail("masked_fill: mask expected to broadcast over ", x.shape(), ", got ", mask.shape());
  }
  if (mask.dtype() != DType::Bool || !(mask.device() == x.device())) {
    fail("masked_fill: mask expected bool on ", x.device(), ", got ", mask.describe());
  }
  return where(mask, full({}, value, x.options()), x);
}

Tensor one_hot(const Tensor& indices, int64_t num_classes) { return ops::one_hot(indices, num_classes); }

}  // namespace halo
