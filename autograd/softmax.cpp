#include <halo/autograd/arithmetic.h>
#include <halo/autograd/node.h>
#include <halo/autograd/softmax.h>
#include <halo/autograd/unary.h>
#include <halo/ops/softmax.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;

/// The gradient in one pass, or of recorded functions where it is to be differentiated again.
Tensor gradient(bool logarithm, const Tensor& g, const Tensor& y, int64_t dim, bool create_graph) {
  if (!create_graph) return ops::softmax_backward(logarithm, g, y, dim);
  const Shape dims = y.rank() == 0 ? Shape{} : Shape{dim};
  if (logarithm) return g - exp(y) * sum(g, dims, true);
  return y * (g - sum(g * y, dims, true));
}

Tensor recorded(const char* name, bool logarithm, const Tensor& x, int64_t dim) {
  const Tensor y = ops::softmax(logarithm, x, dim);
  return record(name, {x}, y,
                [logarithm, dim, saved = SavedTensor::output(y)](const Tensor& g, const BackwardContext& context) {
                  return std::vector<Tensor>{gradient(logarithm, g, saved.unpack(context), dim, context.create_graph)};
                });
}

}  // namespace

Tensor softmax(const Tensor& x, int64_t dim) { return recorded("softmax", false, x, dim); }
Tensor log_softmax(const Tensor& x, int64_t dim) { return recorded("log_softmax", true, x, dim); }

}  // namespace halo
