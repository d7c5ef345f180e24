#include <halo/autograd/arithmetic.h>
#include <halo/autograd/causal_conv1d.h>
#include <halo/autograd/concat.h>
#include <halo/autograd/conv.h>
#include <halo/autograd/node.h>
#include <halo/autograd/unary.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/causal_conv1d.h>

#include <algorithm>
#include <string>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;
using Grads = std::vector<Tensor>;

/// The fused backward taken apart, for a graph of the gradient: a depthwise convolution of [state, x].
Grads differentiable_backward(const CausalConv1dProblem& p, const CausalConv1dTensors& in, const Tensor& g,
                              const Tensor& g_final, const BackwardContext& context) {
  const Tensor state = in.state.defined() ? in.state : zeros(p.state_shape(), in.x.options());
  const Tensor v = cat({state, in.x}, 2), weight = in.weight.reshape({p.channels, 1, p.kernel});
  Tensor dv = cat({zeros(p.x_shape(), g.options()), g_final}, 2);
  Tensor dweight = zeros(weight.shape(), g.options()), dbias = zeros({p.channels}, g.options());
  if (g.numel() > 0) {
    const auto problem =
        ConvProblem::conv("causal_conv1d", v.shape(), weight.shape(), {.dilation = p.dilation, .groups = p.channels});
    Tensor up = g;
    if (p.silu) {
      const Tensor sums = conv_forward(problem, v, weight, in.bias), s = sigmoid(sums);
      up = g * (s * (1.0 + sums * (1.0 - s)));
    }
    dv = dv + conv_backward_input(problem, up, weight);
    dweight = conv_backward_weight(problem, v, up);
    dbias = sum(up, {0, 2});
  }
  Grads grads(4);
  if (context.needs(0)) grads[0] = dv.slice(2, p.state_length(), p.state_length() + p.length);
  if (context.needs(1)) grads[1] = dweight.reshape(in.weight.shape());
  if (context.needs(2)) grads[2] = dbias;
  if (context.needs(3)) grads[3] = dv.slice(2, 0, p.state_length());
  return grads;
}

CausalConv1dProblem make_problem(const char* op, const Tensor& input, const Tensor& weight,
                                 const CausalConv1dOptions& options) {
  check_defined(op, {{"input", input}, {"weight", weight}});
  if (options.activation != ActivationKind::None && options.activation != ActivationKind::Silu) {
    fail(op, ": activation expects none or silu");
  }
  return CausalConv1dProblem::make(op, input.shape(), weight.shape(), options.dilation,
                                   options.activation == ActivationKind::Silu);
}

CausalConv1dOutput causal_conv1d(const char* op, const Tensor& input, const Tensor& weight, const Tensor& bias,
                                 const Tensor& initial_state, const CausalConv1dOptions& options, bool want_state) {
  const auto problem = make_problem(op, input, weight, options);
  const auto result = ops::causal_conv1d_forward(problem, {input, weight, bias, initial_state}, want_state, op);
  std::vector<Tensor> outputs{result.y};
  if (want_state) outputs.push_back(result.final_state);
  record(op, {input, weight, bias, initial_state}, outputs,
         [problem, want_state, sx = SavedTensor(input), sw = SavedTensor(weight), sb = SavedTensor(bias),
          ss = SavedTensor(initial_state)](const std::vector<Tensor>& g, const BackwardContext& context) {
           const CausalConv1dTensors in{sx.unpack(context), sw.unpack(context), sb.unpack(context), ss.unpack(context)};
           if (context.create_graph) {
             const Tensor g_final = want_state ? g[1] : zeros(problem.state_shape(), g[0].options());
             return differentiable_backward(problem, in, g[0], g_final, context);
           }
           const auto grads =
               ops::causal_conv1d_backward(problem, in, {g[0], want_state ? g[1] : Tensor()},
                                           {context.needs(0), context.needs(1), context.needs(2), context.needs(3)});
           return Grads{grads.x, grads.weight, grads.bias, grads.state};
         });
  return {result.y, result.final_state};
}

}  // namespace

Tensor causal_conv1d(const Tensor& input, const Tensor& weight, const Tensor& bias,
                     const CausalConv1dOptions& options) {
  return causal_conv1d("causal_conv1d", input, weight, bias, {}, options, false).output;
}

CausalConv1dOutput causal_conv1d_with_state(const Tensor& input, const Tensor& weight, const Tensor& bias,
                                            const Tensor& initial_state, const CausalConv1dOptions& options) {
  return causal_conv1d("causal_conv1d_with_state", input, weight, bias, initial_state, options, true);
}

Tensor causal_conv1d_packed(const Tensor& input, const IntList& offsets, const Tensor& weight, const Tensor& bias,
                            const CausalConv1dOptions& options) {
  constexpr const char* op = "causal_conv1d_packed";
  make_problem(op, input, weight, options);
  const int64_t length = input.size(2);
  const bool ordered = std::is_sorted(offsets.begin(), offsets.end());
  if (offsets.size() < 2 || offsets.front() != 0 || offsets.back() != length || !ordered) {
    std::string got;
    for (const int64_t offset : offsets) got += (got.empty() ? "" : ", ") + std::to_string(offset);
    fail(op, ": offsets expects 0, ..., ", length, " in order (input ", input.shape(), "), got ", got);
  }
  std::vector<Tensor> parts;
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i - 1] == offsets[i]) continue;
    parts.push_back(
        causal_conv1d(op, input.slice(2, offsets[i - 1], offsets[i]), weight, bias, {}, options, false).output);
  }
  return parts.empty() ? causal_conv1d(op, input, weight, bias, {}, options, false).output : cat(parts, 2);
}

Tensor causal_conv1d_update(const Tensor& input, const Tensor& state, const Tensor& weight, const Tensor& bias,
                            const CausalConv1dOptions& options) {
  constexpr const char* op = "causal_conv1d_update";
  check_defined(op, {{"input", input}, {"state", state}});
  if (input.rank() != 2 && input.rank() != 3) fail(op, ": input expects [B, C] or [B, C, T], got ", input.shape());
  if (autograd::should_record({input, state, weight, bias})) {
    fail(op,
         ": expected operands without requires_grad, or NoGradGuard: a step is not recorded "
         "(causal_conv1d_with_state is)");
  }
  const Tensor x = input.rank() == 2 ? view::unsqueeze(input, 2) : input;
  const auto problem = make_problem(op, x, weight, options);
  check_floating(op, {{"input", x}, {"weight", weight}, {"bias", bias, kOptional}, {"state", state}});
  check_shape(op, "state", state, problem.state_shape());
  const auto result = ops::causal_conv1d_forward(problem, {x, weight, bias, state}, true, op);
  state.copy_(result.final_state);
  return view::reshape(result.y, input.shape());
}

}  // namespace halo
