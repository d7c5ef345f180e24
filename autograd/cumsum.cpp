#include <halo/autograd/cumsum.h>
#include <halo/autograd/node.h>
#include <halo/ops/cumsum.h>

namespace halo {
namespace {

/// The adjoint of a running sum runs from the other end.
Tensor running_sum(const Tensor& x, int64_t dim, bool reverse) {
  return autograd::record("cumsum", {x}, ops::cumsum(x, dim, reverse),
                          [dim, reverse](const Tensor& g, const autograd::BackwardContext&) {
                            return std::vector<Tensor>{running_sum(g, dim, !reverse)};
                          });
}

}  // namespace

Tensor cumsum(const Tensor& x, int64_t dim) { return running_sum(x, dim, false); }

}  // namespace halo
