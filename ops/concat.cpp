#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/concat.h>

namespace halo::ops {

Tensor cat(const std::vector<Tensor>& tensors, int64_t dim) {
  if (tensors.empty()) fail("cat: tensors expected at least one, got none");
  check_all_defined("cat", tensors);
  const Tensor& first = tensors.front();
  const int axis = normalize_axis("cat", dim, first.rank());
  Shape shape = first.shape();
  shape[axis] = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    Shape expected = first.shape();
    if (t.rank() == first.rank()) expected[axis] = t.shape()[axis];
    if (t.shape() != expected || t.dtype() != first.dtype() || t.device() != first.device()) {
      fail("cat: tensor ", i, " expected ", first.describe(), " but for dim ", axis, ", got ", t.describe());
    }
    shape[axis] += t.shape()[axis];
  }
  Tensor out = empty(shape, first.options());
  int64_t at = 0;
  for (const Tensor& t : tensors) {
    const int64_t extent = t.shape()[axis];
    copy(t, view::slice(out, axis, at, at + extent));
    at += extent;
  }
  return out;
}

}  // namespace halo::ops
