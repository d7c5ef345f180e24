#include <halo/autograd/arithmetic.h>
#include <halo/autograd/composed.h>
#include <halo/autograd/gelu_linear.h>
#include <halo/autograd/matmul.h>
#include <halo/autograd/node.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/bias_gelu.h>
#include <halo/ops/matmul.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;
using Grads = std::vector<Tensor>;

}  // namespace

Tensor gelu_linear(const Tensor& input, const Tensor& bias, const Tensor& weight, GeluForm form) {
  check_floating("gelu_linear", {{"input", input}, {"bias", bias}, {"weight", weight}});
  if (input.rank() == 0 || weight.rank() != 2 || input.size(-1) != weight.size(1)) {
    fail("gelu_linear: input and weight expected [..., in] and [out, in], got ", input.shape(), " and ",
         weight.shape());
  }
  if (bias.shape() != Shape{input.size(-1)}) {
    fail("gelu_linear: bias expected shape ", Shape{input.size(-1)}, ", got ", bias.shape());
  }
  const UnaryOp op = form == GeluForm::Exact ? UnaryOp::Gelu : UnaryOp::GeluTanh;
  const Tensor x = input.flatten(0, -2);
  const Tensor y =
      record("gelu_linear", {x, bias, weight}, ops::linear(ops::bias_gelu_forward(op, x, bias), weight, {}),
             [=, sx = SavedTensor(x), sb = SavedTensor(bias), sw = SavedTensor(weight)](
                 const Tensor& g, const BackwardContext& context) {
               const Tensor in = sx.unpack(context), b = sb.unpack(context), w = sw.unpack(context);
               if (context.create_graph) {
                 const auto function = [form](const Grads& t) {
                   return Grads{matmul(gelu(t[0] + t[1], form), t[2].transpose(0, 1))};
                 };
                 return autograd::composed_grads(function, {in, b, w}, {g});
               }
               const BiasGeluGrads grads = ops::bias_gelu_backward(op, ops::matmul(g, w), in, b, true);
               return Grads{grads.x, grads.bias, ops::matmul(view::transpose(g, 0, 1), grads.y)};
             });
  Shape shape = input.shape();
  shape[shape.rank() - 1] = weight.size(0);
  return y.reshape(shape);
}

}  // namespace halo
