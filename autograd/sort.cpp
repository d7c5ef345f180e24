#include <halo/autograd/index.h>
#include <halo/autograd/node.h>
#include <halo/autograd/sort.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;

/// Records `result.values` as gathered from x.
SortResult picked(const char* name, const Tensor& x, int64_t dim, const SortResult& result) {
  const Tensor values = record(
      name, {x}, result.values,
      [dim, shape = x.shape(), at = SavedTensor(result.indices)](const Tensor& g, const BackwardContext& context) {
        if (shape.empty()) return std::vector<Tensor>{g};
        return std::vector<Tensor>{scatter_add(zeros(shape, g.options()), dim, at.unpack(context), g)};
      });
  return {values, result.indices};
}

}  // namespace

SortResult sort(const Tensor& x, int64_t dim, bool descending) {
  return picked("sort", x, dim, ops::sort(x, dim, descending));
}

SortResult topk(const Tensor& x, int64_t k, int64_t dim, bool largest) {
  return picked("topk", x, dim, ops::topk(x, k, dim, largest));
}

Tensor argmax(const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
  return ops::arg_extreme("argmax", x, true, dim, keepdim);
}

Tensor argmin(const Tensor& x, std::optional<int64_t> dim, bool keepdim) {
  return ops::arg_extreme("argmin", x, false, dim, keepdim);
}

}  // namespace halo
