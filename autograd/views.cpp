// The differentiable views and conversions that core/tensor.h declares. Each gradient is the adjoint view, itself
// differentiable.
#include <halo/autograd/arithmetic.h>
#include <halo/autograd/node.h>
#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>

namespace halo {

using autograd::BackwardContext;
using autograd::record;
using Grads = std::vector<Tensor>;

Tensor Tensor::to(Device target) const {
  if (device() == target) return *this;
  return record("to", {*this}, convert(*this, dtype(), target),
                [from = device()](const Tensor& g, const BackwardContext&) { return Grads{g.to(from)}; });
}

Tensor Tensor::to(DType target) const {
  if (dtype() == target) return *this;
  const Tensor result = convert(*this, target, device());
  if (!is_floating_point(target)) return result;
  return record("to", {*this}, result,
                [from = dtype()](const Tensor& g, const BackwardContext&) { return Grads{g.to(from)}; });
}

Tensor Tensor::contiguous() const { return is_contiguous() ? *this : clone(); }

Tensor Tensor::clone() const {
  const Tensor result = empty(shape(), options());
  copy(*this, result);
  return record("clone", {*this}, result, [](const Tensor& g, const BackwardContext&) { return Grads{g}; });
}

Tensor Tensor::reshape(const Shape& wanted) const {
  return record("reshape", {*this}, view::reshape(*this, wanted),
                [from = shape()](const Tensor& g, const BackwardContext&) { return Grads{g.reshape(from)}; });
}

Tensor Tensor::flatten(int64_t start, int64_t end) const { return reshape(view::flatten(*this, start, end).shape()); }

Tensor Tensor::transpose(int64_t dim0, int64_t dim1) const {
  return record("transpose", {*this}, view::transpose(*this, dim0, dim1),
                [=](const Tensor& g, const BackwardContext&) { return Grads{g.transpose(dim0, dim1)}; });
}

Tensor Tensor::permute(const Shape& dims) const {
  const Tensor result = view::permute(*this, dims);
  Shape inverse = dims;
  for (int i = 0; i < dims.rank(); ++i) inverse[normalize_axis("permute", dims[i], rank())] = i;
  return record("permute", {*this}, result,
                [inverse](const Tensor& g, const BackwardContext&) { return Grads{g.permute(inverse)}; });
}

Tensor Tensor::expand(const Shape& wanted) const {
  return record("expand", {*this}, view::expand(*this, wanted),
                [from = shape()](const Tensor& g, const BackwardContext&) { return Grads{sum_to(g, from)}; });
}

Tensor Tensor::unsqueeze(int64_t dim) const { return reshape(view::unsqueeze(*this, dim).shape()); }
Tensor Tensor::squeeze(int64_t dim) const { return reshape(view::squeeze(*this, dim).shape()); }

namespace {

/// The adjoint of slice: zeros of `shape` with `g` at the sliced places.
Tensor slice_backward(const Tensor& g, const Shape& shape, int64_t dim, int64_t start, int64_t end, int64_t step) {
  const Tensor result = zeros(shape, g.options());
  copy(g, view::slice(result, dim, start, end, step));
  return record("slice_backward", {g}, result,
                [=](const Tensor& up, const BackwardContext&) { return Grads{up.slice(dim, start, end, step)}; });
}

}  // namespace

Tensor Tensor::slice(int64_t dim, int64_t start, int64_t end, int64_t step) const {
  return record("slice", {*this}, view::slice(*this, dim, start, end, step),
                [=, from = shape()](const Tensor& g, const BackwardContext&) {
                  return Grads{slice_backward(g, from, dim, start, end, step)};
                });
}

Tensor Tensor::select(int64_t dim, int64_t index) const {
  const Shape dropped = view::select(*this, dim, index).shape();  // checks dim and index
  const int64_t at = index < 0 ? index + size(dim) : index;
  return slice(dim, at, at + 1).reshape(dropped);
}

}  // namespace halo
