// gelu(x + bias) in one pass, as a network with one hidden layer needs it.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/unary.h>

namespace halo {

/// Results of the backward pass: gradients of x and bias, and y once more, which saves keeping it.
struct BiasGeluGrads {
  Tensor x{}, bias{}, y{};
  template <class F>
  void for_each_tensor(F&& f) {
    for (Tensor* t : {&x, &bias, &y}) f(*t);
  }
};

namespace ops {

/// x [..., C], bias [C]; `form` is UnaryOp::Gelu or GeluTanh.
Tensor bias_gelu_forward(UnaryOp form, const Tensor& x, const Tensor& bias);
/// `overwrite`: the gradient of x may take g's memory.
BiasGeluGrads bias_gelu_backward(UnaryOp form, const Tensor& g, const Tensor& x, const Tensor& bias,
                                 bool overwrite = false);

}  // namespace ops
}  // namespace halo
