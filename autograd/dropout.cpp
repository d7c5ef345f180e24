#include <halo/autograd/dropout.h>
#include <halo/autograd/node.h>
#include <halo/core/error.h>
#include <halo/ops/dropout.h>

namespace halo {
namespace {

/// Linear, and its own adjoint.
Tensor masked(const Tensor& x, double p, PhiloxState state) {
  return autograd::record("dropout", {x}, ops::dropout(x, p, state),
                          [p, state](const Tensor& g, const autograd::BackwardContext&) {
                            return std::vector<Tensor>{masked(g, p, state)};
                          });
}

}  // namespace

Tensor dropout(const Tensor& x, double p, bool training, Generator& generator) {
  if (!(p >= 0 && p <= 1)) fail("dropout: p expected from 0 to 1, got ", p);
  check_defined("dropout", {{"input", x}});
  if (!training || p == 0) return x;
  return masked(x, p, generator.reserve(static_cast<uint64_t>(x.numel())));
}

}  // namespace halo
