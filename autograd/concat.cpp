#include <halo/autograd/concat.h>
#include <halo/autograd/node.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/concat.h>
#include <halo/ops/flip.h>

#include <algorithm>

namespace halo {

using autograd::BackwardContext;
using autograd::record;

Tensor cat(const std::vector<Tensor>& tensors, int64_t dim) {
  const Tensor joined = ops::cat(tensors, dim);
  std::vector<int64_t> extents;
  for (const Tensor& t : tensors) extents.push_back(t.size(dim));
  return record("cat", tensors, joined, [extents, dim](const Tensor& g, const BackwardContext& context) {
    std::vector<Tensor> grads(extents.size());
    int64_t at = 0;
    for (std::size_t i = 0; i < extents.size(); ++i) {
      if (context.needs(i)) grads[i] = g.slice(dim, at, at + extents[i]);
      at += extents[i];
    }
    return grads;
  });
}

Tensor stack(const std::vector<Tensor>& tensors, int64_t dim) {
  if (tensors.empty()) fail("stack: tensors expected at least one, got none");
  check_all_defined("stack", tensors);
  const int axis = normalize_axis("stack", dim, tensors.front().rank() + 1);
  std::vector<Tensor> widened;
  for (const Tensor& t : tensors) {
    if (t.shape() != tensors.front().shape()) {
      fail("stack: tensors expected one shape, got ", tensors.front().shape(), " and ", t.shape());
    }
    check_same_dtype_and_device("stack", {{"the first tensor", tensors.front()}, {"another", t}});
    widened.push_back(t.unsqueeze(axis));
  }
  return cat(widened, axis);
}

namespace {
/// "[3, 4]", of any length.
std::string list(const IntList& values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}
}  // namespace

std::vector<Tensor> split(const Tensor& x, const IntList& sizes, int64_t dim) {
  check_defined("split", {{"input", x}});
  const int64_t extent = x.shape()[normalize_axis("split", dim, x.rank())];
  IntList lengths = sizes;
  if (sizes.size() == 1 && sizes[0] > 0) {  // one size repeats
    lengths.assign(static_cast<std::size_t>(std::max<int64_t>(1, (extent - 1) / sizes[0] + 1)), sizes[0]);
    lengths.back() = extent - sizes[0] * static_cast<int64_t>(lengths.size() - 1);
  }
  int64_t left = extent;
  bool fits = true;
  for (int64_t length : lengths) {
    fits = fits && length >= 0 && length <= left;
    left -= fits ? length : 0;
  }
  if (!fits || left != 0) {
    fail("split: sizes expected to add up to ", extent, " (dim ", dim, " of ", x.shape(), "), got ", list(sizes));
  }
  std::vector<Tensor> parts;
  int64_t at = 0;
  for (int64_t length : lengths) {
    parts.push_back(view::slice(x, dim, at, at + length));
    at += length;
  }
  record("split", {x}, parts,
         [dim](const std::vector<Tensor>& g, const BackwardContext&) { return std::vector<Tensor>{cat(g, dim)}; });
  return parts;
}

std::vector<Tensor> unbind(const Tensor& x, int64_t dim) {
  check_defined("unbind", {{"input", x}});
  const int axis = normalize_axis("unbind", dim, x.rank());
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < x.shape()[axis]; ++i) parts.push_back(view::select(x, axis, i));
  record("unbind", {x}, parts,
         [axis](const std::vector<Tensor>& g, const BackwardContext&) { return std::vector<Tensor>{stack(g, axis)}; });
  return parts;
}

std::vector<Tensor> chunk(const Tensor& x, int64_t chunks, int64_t dim) {
  check_defined("chunk", {{"input", x}});
  if (chunks < 1) fail("chunk: chunks expected at least 1, got ", chunks);
  const int64_t extent = x.shape()[normalize_axis("chunk", dim, x.rank())];
  return split(x, std::max<int64_t>(1, extent / chunks + (extent % chunks != 0)), dim);
}

Tensor flip(const Tensor& x, const Shape& dims) {
  return record("flip", {x}, ops::flip(x, dims),
                [dims](const Tensor& g, const BackwardContext&) { return std::vector<Tensor>{flip(g, dims)}; });
}

}  // namespace halo
