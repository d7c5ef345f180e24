#include <halo/autograd/node.h>
#include <halo/autograd/pad.h>

namespace halo {

using autograd::BackwardContext;
using autograd::record;

namespace {

/// Linear in g; its adjoint pads (with zeros where the mode is Constant).
Tensor pad_backward(const Tensor& g, const Shape& shape, const IntList& amounts, PadMode mode) {
  return record("pad_backward", {g}, ops::pad_backward(g, shape, amounts, mode),
                [=](const Tensor& up, const BackwardContext&) { return std::vector<Tensor>{pad(up, amounts, mode)}; });
}

}  // namespace

Tensor pad(const Tensor& x, const IntList& amounts, PadMode mode, const Scalar& value) {
  const Tensor y = ops::pad(x, amounts, mode, value);
  return record("pad", {x}, y, [=, shape = x.shape()](const Tensor& g, const BackwardContext&) {
    return std::vector<Tensor>{pad_backward(g, shape, amounts, mode)};
  });
}

}  // namespace halo
