#include <halo/autograd/arithmetic.h>
#include <halo/autograd/causal_conv1d.h>
#include <halo/autograd/composed.h>
#include <halo/autograd/concat.h>
#include <halo/autograd/gated_long_conv.h>
#include <halo/autograd/long_conv.h>
#include <halo/autograd/node.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/long_conv.h>
#include <halo/ops/token_filter.h>

namespace halo {
namespace {

using autograd::BackwardContext;
using autograd::record;
using autograd::SavedTensor;
using Grads = std::vector<Tensor>;

constexpr const char* kOp = "gated_long_conv";

/// The operands in the order in which they are recorded.
enum Operand : std::size_t { kProjections, kProjectionBias, kShortWeight, kShortBias, kFilter, kSkip };

struct Problem {
  TokenFilterProblem tokens;
  LongConvProblem sequences;

  static Problem make(const Grads& in) {
    const Tensor &projections = in[kProjections], &short_weight = in[kShortWeight], &filter = in[kFilter];
    check_floating(kOp, {{"projections", projections},
                         {"projection_bias", in[kProjectionBias], kOptional},
                         {"short_weight", short_weight},
                         {"short_bias", in[kShortBias], kOptional},
                         {"filter", filter},
                         {"skip", in[kSkip], kOptional}});
    if (projections.rank() != 3 || projections.size(2) % 3 != 0) {
      fail(kOp, ": projections expect [B, L, 3 D], got ", projections.shape());
    }
    const int64_t width = projections.size(2), channels = width / 3;
    const int64_t kernel = short_weight.rank() < 2 ? 0 : short_weight.size(-1);
    if (kernel < 1 || kernel > TokenFilterProblem::kMaxKernel || short_weight.size(0) != width ||
        short_weight.numel() != width * kernel) {
      fail(kOp, ": short_weight expects [", width, ", 1, K] with K from 1 to ", TokenFilterProblem::kMaxKernel,
           ", got ", short_weight.shape());
    }
    check_shape(kOp, "projection_bias", in[kProjectionBias], {width});
    check_shape(kOp, "short_bias", in[kShortBias], {width});
    check_shape(kOp, "skip", in[kSkip], {channels});
    return {{.batch = projections.size(0),
             .length = projections.size(1),
             .parts = 3,
             .channels = channels,
             .kernel = kernel},
            LongConvProblem::make(kOp, {projections.size(0), channels, projections.size(1)}, filter.shape(), true)};
  }
};

TokenFilterTensors token_operands(const Problem& p, const Grads& in) {
  return {in[kProjections], in[kProjectionBias], view::reshape(in[kShortWeight], {p.tokens.width(), p.tokens.kernel}),
          in[kShortBias]};
}

LongConvTensors sequence_operands(const Grads& in, const std::vector<Tensor>& x) {
  return {.x = x[2], .weight = in[kFilter], .skip = in[kSkip], .gate_in = x[1], .gate_out = x[0]};
}

Grads backward(const Problem& p, const Grads& in, const Tensor& g) {
  const TokenFilterTensors tokens = token_operands(p, in);
  LongConvTensors grads;
  {
    const auto x = ops::token_filter_forward(p.tokens, tokens);
    grads = ops::long_conv_backward(p.sequences, sequence_operands(in, x), view::dense(view::transpose(g, 1, 2)),
                                    {.x = true, .weight = true, .skip = true, .gate_in = true, .gate_out = true});
  }
  const auto from = ops::token_filter_backward(p.tokens, tokens, {grads.gate_out, grads.gate_in, grads.x});
  return {from.x,
          in[kProjectionBias].defined() ? from.x_bias : Tensor(),
          view::reshape(from.weight, in[kShortWeight].shape()),
          in[kShortBias].defined() ? from.bias : Tensor(),
          grads.weight,
          in[kSkip].defined() ? grads.skip : Tensor()};
}

/// The same from differentiable functions.
Grads composed(const Grads& in) {
  const Tensor tokens = in[kProjectionBias].defined() ? in[kProjections] + in[kProjectionBias] : in[kProjections];
  const auto x = split(causal_conv1d(tokens.transpose(1, 2), in[kShortWeight], in[kShortBias]), tokens.size(2) / 3, 1);
  return {long_conv(x[2], in[kFilter], in[kSkip], {.gate_in = x[1], .gate_out = x[0]}).transpose(1, 2)};
}

}  // namespace

Tensor gated_long_conv(const Tensor& projections, const Tensor& projection_bias, const Tensor& short_weight,
                       const Tensor& short_bias, const Tensor& filter, const Tensor& skip, WeightUse filter_use) {
  const Grads in{projections, projection_bias, short_weight, short_bias, filter, skip};
  const Problem problem = Problem::make(in);
  const auto x = ops::token_filter_forward(problem.tokens, token_operands(problem, in));
  const Tensor y =
      ops::long_conv_forward(problem.sequences, sequence_operands(in, x), LongConvMethod::Auto, filter_use);
  std::vector<SavedTensor> saved;
  for (const Tensor& t : in) saved.emplace_back(t);
  return record(kOp, in, view::dense(view::transpose(y, 1, 2)),
                [problem, saved](const Tensor& g, const BackwardContext& context) {
                  Grads operands;
                  for (const SavedTensor& s : saved) operands.push_back(s.unpack(context));
                  if (!context.create_graph) return backward(problem, operands, g);
                  return autograd::composed_grads(composed, operands, {g});
                });
}

}  // namespace halo
