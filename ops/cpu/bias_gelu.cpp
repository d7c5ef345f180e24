#include <halo/core/view.h>
#include <halo/ops/bias_gelu_backend.h>
#include <halo/ops/binary_backend.h>
#include <halo/ops/reduce_backend.h>
#include <halo/ops/unary_backend.h>

namespace halo::cpu {

void bias_gelu_forward(UnaryOp form, const Tensor& x, const Tensor& bias, const Tensor& y) {
  binary(BinaryOp::Add, x, view::expand(bias, x.shape()), y);
  unary(form, {}, y, y);
}

void bias_gelu_backward(UnaryOp form, const Tensor& g, const Tensor& x, const Tensor& bias,
                        const BiasGeluGrads& grads) {
  binary(BinaryOp::Add, x, view::expand(bias, x.shape()), grads.y);
  unary_derivative(form, {}, 1, g, grads.y, grads.x);
  unary(form, {}, grads.y, grads.y);
  reduce(ReduceOp::Sum, view::transpose(grads.x, 0, 1), 1, grads.bias);
}

}  // namespace halo::cpu
