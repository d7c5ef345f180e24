#include <halo/autograd/arithmetic.h>
#include <halo/autograd/long_conv.h>
#include <halo/autograd/node.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;
using Grads = std::vector<Tensor>;

/// The trilinear form of x, w and g, as ConvProblem has it: its three contractions close under differentiation.
struct Form {
  LongConvProblem problem;
  LongConvMethod method;
};

Tensor form_input(const Form& form, const Tensor& g, const Tensor& w);
Tensor form_weight(const Form& form, const Tensor& x, const Tensor& g);

Tensor form_output(const Form& form, const Tensor& x, const Tensor& w) {
  return record("long_conv_forward", {x, w}, ops::long_conv_forward(form.problem, {.x = x, .weight = w}, form.method),
                [form, sx = SavedTensor(x), sw = SavedTensor(w)](const Tensor& g, const BackwardContext& context) {
                  Grads grads(2);
                  if (context.needs(0)) grads[0] = form_input(form, g, sw.unpack(context));
                  if (context.needs(1)) grads[1] = form_weight(form, sx.unpack(context), g);
                  return grads;
                });
}

Tensor form_input(const Form& form, const Tensor& g, const Tensor& w) {
  const auto result = ops::long_conv_backward(form.problem, {.weight = w}, g, {.x = true}, form.method);
  return record("long_conv_backward_input", {g, w}, result.x,
                [form, sg = SavedTensor(g), sw = SavedTensor(w)](const Tensor& x, const BackwardContext& context) {
                  Grads grads(2);
                  if (context.needs(0)) grads[0] = form_output(form, x, sw.unpack(context));
                  if (context.needs(1)) grads[1] = form_weight(form, x, sg.unpack(context));
                  return grads;
                });
}

Tensor form_weight(const Form& form, const Tensor& x, const Tensor& g) {
  const auto result = ops::long_conv_backward(form.problem, {.x = x}, g, {.weight = true}, form.method);
  return record("long_conv_backward_weight", {x, g}, result.weight,
                [form, sx = SavedTensor(x), sg = SavedTensor(g)](const Tensor& w, const BackwardContext& context) {
                  Grads grads(2);
                  if (context.needs(0)) grads[0] = form_input(form, sg.unpack(context), w);
                  if (context.needs(1)) grads[1] = form_output(form, sx.unpack(context), w);
                  return grads;
                });
}

/// The fused backward taken apart, for a graph of the gradient.
Grads differentiable_backward(const Form& form, const LongConvTensors& in, const Tensor& g,
                              const BackwardContext& context) {
  const auto times = [](const Tensor& a, const Tensor& gate) { return gate.defined() ? a * gate : a; };
  const Tensor skip = in.skip.defined() ? in.skip.reshape({-1, 1}) : Tensor();
  const auto plus_skip = [&](const Tensor& sums, const Tensor& row) {
    return skip.defined() ? sums + skip * row : sums;
  };
  const Tensor u = times(in.x, in.gate_in), v = times(g, in.gate_out);
  Grads grads(5);
  if (context.needs(0) || context.needs(3)) {
    const Tensor du = plus_skip(form_input(form, v, in.weight), v);
    if (context.needs(0)) grads[0] = times(du, in.gate_in);
    if (context.needs(3)) grads[3] = in.x * du;
  }
  if (context.needs(1)) grads[1] = form_weight(form, u, v);
  if (context.needs(2)) grads[2] = sum(u * v, {0, 2});
  if (context.needs(4)) grads[4] = g * plus_skip(form_output(form, u, in.weight), u);
  return grads;
}

}  // namespace

namespace {

Tensor long_conv(const char* op, const Tensor& input, const Tensor& weight, const Tensor& skip,
                 const LongConvOptions& options) {
  check_defined(op, {{"input", input}, {"weight", weight}});
  const auto problem = LongConvProblem::make(op, input.shape(), weight.shape(), options.causal);
  const Form form{problem, options.method};
  const Tensor y = ops::long_conv_forward(problem, {input, weight, skip, options.gate_in, options.gate_out},
                                          options.method, autograd::weight_use(weight), op);
  return record(op, {input, weight, skip, options.gate_in, options.gate_out}, y,
                [form, sx = SavedTensor(input), sw = SavedTensor(weight), ss = SavedTensor(skip),
                 si = SavedTensor(options.gate_in),
                 so = SavedTensor(options.gate_out)](const Tensor& g, const BackwardContext& context) {
                  const LongConvTensors in{sx.unpack(context), sw.unpack(context), ss.unpack(context),
                                           si.unpack(context), so.unpack(context)};
                  if (context.create_graph) return differentiable_backward(form, in, g, context);
                  const auto grads = ops::long_conv_backward(
                      form.problem, in, g,
                      {context.needs(0), context.needs(1), context.needs(2), context.needs(3), context.needs(4)},
                      form.method);
                  return Grads{grads.x, grads.weight, grads.skip, grads.gate_in, grads.gate_out};
                });
}

}  // namespace

Tensor long_conv(const Tensor& input, const Tensor& weight, const Tensor& skip, const LongConvOptions& options) {
  return long_conv("long_conv", input, weight, skip, options);
}

Tensor long_conv_direct(const Tensor& input, const Tensor& weight, const Tensor& skip, const LongConvOptions& options) {
  LongConvOptions direct = options;
  direct.method = LongConvMethod::Direct;
  return long_conv("long_conv_direct", input, weight, skip, direct);
}

}  // namespace halo
