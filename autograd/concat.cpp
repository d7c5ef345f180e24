#include <halo/autograd/concat.h>
#include <halo/autograd/node.h>
#include <halo/core/error.h>
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
  const int axis = normalize_axis("stack", dim, tensors.front().rank() + 1);
  std::vector<Tensor> widened;
  for (const Tensor& t : tensors) {
    if (t.shape() != tensors.front().shape()) {
      fail("stack: tensors expected one shape, got ", tensors.front().shape(), " and ", t.shape());
    }
    widened.push_back(t.unsqueeze(axis));
  }
  return cat(widened, axis);
}

std::vector<Tensor> split(const Tensor& x, const IntList& sizes, int64_t dim) {
  const int64_t extent = x.size(dim);
  const bool repeats = sizes.size() == 1;
  if (sizes.empty() || std::any_of(sizes.begin(), sizes.end(), [](int64_t s) { return s < 0; }) ||
      (repeats && sizes[0] == 0 && extent > 0)) {
    fail("split: sizes expected one or more numbers of 0 or more, got ", Shape(sizes));
  }
  std::vector<Tensor> parts;
  int64_t at = 0;
  for (std::size_t i = 0; repeats ? at < extent || parts.empty() : i < sizes.size(); ++i) {
    const int64_t size = repeats ? std::min(sizes[0], extent - at) : sizes[i];
    if (size > extent - at) break;
    parts.push_back(x.slice(dim, at, at + size));
    at += size;
  }
  if (at != extent || (!repeats && parts.size() != sizes.size())) {
    fail("split: sizes expected to add up to ", extent, " (dim ", dim, " of ", x.shape(), "), got ", Shape(sizes));
  }
  return parts;
}

std::vector<Tensor> chunk(const Tensor& x, int64_t chunks, int64_t dim) {
  if (chunks < 1) fail("chunk: chunks expected at least 1, got ", chunks);
  const int64_t extent = x.size(dim);
  return split(x, std::max<int64_t>(1, extent / chunks + (extent % chunks != 0)), dim);
}

Tensor flip(const Tensor& x, const Shape& dims) {
  return record("flip", {x}, ops::flip(x, dims),
                [dims](const Tensor& g, const BackwardContext&) { return std::vector<Tensor>{flip(g, dims)}; });
}

}  // namespace halo
