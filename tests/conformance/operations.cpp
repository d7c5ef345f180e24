// The one list of operations that case files may name.
#include <halo/halo.h>

#include <functional>

#include "tests/conformance/case.h"

namespace halo::conformance {
namespace {

using Operation = std::function<Tensor(Case&)>;

Operation conv(Tensor (*f)(const Tensor&, const Tensor&, const Tensor&, const ConvOptions&, const Activation&),
               int rank) {
  return [=](Case& c) {
    ConvOptions options = c.conv_options(rank);
    return f(c.input("input"), c.input("weight"), c.optional("bias"), options, {});
  };
}

Operation conv_transpose(Tensor (*f)(const Tensor&, const Tensor&, const Tensor&, const ConvOptions&), int rank) {
  return [=](Case& c) { return f(c.input("input"), c.input("weight"), c.optional("bias"), c.conv_options(rank)); };
}

Operation unary(Tensor (*f)(const Tensor&)) {
  return [=](Case& c) { return f(c.input("input")); };
}

const std::map<std::string, Operation>& operations() {
  static const std::map<std::string, Operation> list{
      {"conv1d", conv(conv1d, 1)},
      {"conv2d", conv(conv2d, 2)},
      {"conv3d", conv(conv3d, 3)},
      {"conv_transpose1d", conv_transpose(conv_transpose1d, 1)},
      {"conv_transpose2d", conv_transpose(conv_transpose2d, 2)},
      {"conv_transpose3d", conv_transpose(conv_transpose3d, 3)},
      {"exp", unary(exp)},
      {"log", unary(log)},
      {"sin", unary(sin)},
      {"tanh", unary(tanh)},
      {"sigmoid", unary(sigmoid)},
      {"softplus", unary(softplus)},
      {"relu", unary(relu)},
      {"silu", unary(silu)},
      {"leaky_relu", [](Case& c) { return leaky_relu(c.input("input"), c.real("negative_slope", 0.01)); }},
      {"gelu",
       [](Case& c) {
         return gelu(c.input("input"), c.text("approximate", "none") == "tanh" ? GeluForm::Tanh : GeluForm::Exact);
       }},
  };
  return list;
}

}  // namespace

bool run_operation(Case& c, Result& result) {
  const auto found = operations().find(c.op());
  if (found == operations().end()) return false;
  result.root = found->second(c);
  result.root_grad = c.input("grad_output");
  result.outputs["output"] = result.root.detach();
  return true;
}

}  // namespace halo::conformance
