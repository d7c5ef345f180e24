#include <halo/autograd/arithmetic.h>
#include <halo/autograd/node.h>
#include <halo/autograd/unary.h>
#include <halo/core/error.h>
#include <halo/ops/unary.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;

/// g times the derivative of `order` at s, differentiable in both.
Tensor derivative(UnaryOp op, int order, const Tensor& g, const Tensor& s, UnaryParams params) {
  return record("unary_derivative", {g, s}, ops::unary_derivative(op, order, g, s, params),
                [=, sg = SavedTensor(g), ss = SavedTensor(s)](const Tensor& up, const BackwardContext& context) {
                  std::vector<Tensor> grads(2);
                  if (context.needs(0)) grads[0] = derivative(op, order, up, ss.unpack(context), params);
                  if (context.needs(1)) {
                    if (order == 2)
                      fail("backward: elementwise functions expected derivatives up to the third, got a fourth");
                    grads[1] = up * derivative(op, 2, sg.unpack(context), ss.unpack(context), params);
                  }
                  return grads;
                });
}

Tensor unary(const char* name, UnaryOp op, const Tensor& x, UnaryParams params = {}) {
  const Tensor y = ops::unary(op, x, params, name);
  const bool from_output = dispatch_unary(op, params, [](auto f) { return decltype(f)::kFromOutput; });
  const SavedTensor saved = from_output ? SavedTensor::output(y) : SavedTensor(x);
  return record(name, {x}, y, [=](const Tensor& g, const BackwardContext& context) {
    return std::vector<Tensor>{derivative(op, 1, g, saved.unpack(context), params)};
  });
}

}  // namespace

Tensor abs(const Tensor& x) { return unary("abs", UnaryOp::Abs, x); }
Tensor exp(const Tensor& x) { return unary("exp", UnaryOp::Exp, x); }
Tensor log(const Tensor& x) { return unary("log", UnaryOp::Log, x); }
Tensor sqrt(const Tensor& x) { return unary("sqrt", UnaryOp::Sqrt, x); }
Tensor sin(const Tensor& x) { return unary("sin", UnaryOp::Sin, x); }
Tensor cos(const Tensor& x) { return unary("cos", UnaryOp::Cos, x); }
Tensor tanh(const Tensor& x) { return unary("tanh", UnaryOp::Tanh, x); }
Tensor sigmoid(const Tensor& x) { return unary("sigmoid", UnaryOp::Sigmoid, x); }
Tensor softplus(const Tensor& x) { return unary("softplus", UnaryOp::Softplus, x); }
Tensor relu(const Tensor& x) { return unary("relu", UnaryOp::Relu, x); }
Tensor leaky_relu(const Tensor& x, double negative_slope) {
  return unary("leaky_relu", UnaryOp::LeakyRelu, x, {negative_slope});
}
Tensor gelu(const Tensor& x, GeluForm form) {
  return unary("gelu", form == GeluForm::Exact ? UnaryOp::Gelu : UnaryOp::GeluTanh, x);
}
Tensor silu(const Tensor& x) { return unary("silu", UnaryOp::Silu, x); }
Tensor clamp(const Tensor& x, double low, double high) {
  if (!(low <= high)) fail("clamp: low expected at most high, got ", low, " and ", high);
  return unary("clamp", UnaryOp::Clamp, x, {low, high});
}
Tensor pow(const Tensor& x, double exponent) { return unary("pow", UnaryOp::Pow, x, {exponent}); }
Tensor reciprocal(const Tensor& x) { return unary("reciprocal", UnaryOp::Reciprocal, x); }
Tensor scale(const Tensor& x, double factor) { return unary("scale", UnaryOp::Scale, x, {factor}); }
Tensor shift(const Tensor& x, double summand) { return unary("shift", UnaryOp::Shift, x, {summand}); }

// Arithmetic with a number (autograd/arithmetic.h): the same functions under the names that people wrote.
Tensor operator+(const Tensor& a, double b) { return unary("add", UnaryOp::Shift, a, {b}); }
Tensor operator-(const Tensor& a, double b) { return unary("sub", UnaryOp::Shift, a, {-b}); }
Tensor operator*(const Tensor& a, double b) { return unary("mul", UnaryOp::Scale, a, {b}); }
Tensor operator/(const Tensor& a, double b) {
  check_defined("div", {{"input", a}});
  return a / full({}, b, a.options());
}
Tensor operator+(double a, const Tensor& b) { return b + a; }
Tensor operator-(double a, const Tensor& b) { return unary("sub", UnaryOp::Scale, b, {-1}) + a; }
Tensor operator*(double a, const Tensor& b) { return b * a; }
Tensor operator/(double a, const Tensor& b) { return unary("div", UnaryOp::Reciprocal, b) * a; }
Tensor operator-(const Tensor& a) { return unary("neg", UnaryOp::Scale, a, {-1}); }

Tensor activate(const Tensor& x, const Activation& activation) {
  switch (activation.kind) {
    case ActivationKind::None: return x;
    case ActivationKind::Relu: return relu(x);
    case ActivationKind::LeakyRelu: return leaky_relu(x, static_cast<double>(activation.slope));
    case ActivationKind::Gelu: return gelu(x);
    case ActivationKind::GeluTanh: return gelu(x, GeluForm::Tanh);
    case ActivationKind::Silu: return silu(x);
  }
  fail<InternalError>("activate: unknown activation");
}

bool has_derivative_of_result(const Activation& activation) {
  switch (activation.kind) {
    case ActivationKind::None:
    case ActivationKind::Relu: return true;
    case ActivationKind::LeakyRelu: return activation.slope >= 0;  // then the result has the argument's sign
    default: return false;
  }
}

Tensor activation_backward(const Activation& activation, const Tensor& g, const Tensor& y) {
  switch (activation.kind) {
    case ActivationKind::None: return g;
    case ActivationKind::Relu: return derivative(UnaryOp::Relu, 1, g, y, {});
    case ActivationKind::LeakyRelu:
      return derivative(UnaryOp::LeakyRelu, 1, g, y, {static_cast<double>(activation.slope)});
    default: fail<InternalError>("activation_backward: expected an activation with a derivative of its result");
  }
}

}  // namespace halo
