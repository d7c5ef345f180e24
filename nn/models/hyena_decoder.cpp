#include <halo/autograd/arithmetic.h>
#include <halo/autograd/causal_conv1d.h>
#include <halo/autograd/concat.h>
#include <halo/autograd/gelu_linear.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/long_conv.h>
#include <halo/autograd/matmul.h>
#include <halo/autograd/pad.h>
#include <halo/core/error.h>
#include <halo/nn/models/hyena_decoder.h>
#include <halo/ops/hyena_step.h>

#include <algorithm>

namespace halo::models {
namespace {

constexpr int64_t kBlock = HyenaStepProblem::kBlock;

}  // namespace

HyenaDecoder::HyenaDecoder(HyenaLM& model, int64_t capacity) : model_(&model), capacity_(capacity) {
  if (capacity < 1) fail("HyenaDecoder: capacity expected 1 or more, got ", capacity);
}

/// The mixer of a whole prefix; fills `layer`.
Tensor HyenaDecoder::mix(HyenaOperator& mixer, const Tensor& tokens, Layer& layer) const {
  const HyenaOptions& o = mixer.options_;
  const int64_t batch = tokens.size(0), length = tokens.size(1), before = o.short_filter - 1;
  const Tensor projected = mixer.in_proj_(tokens).transpose(1, 2).contiguous();
  layer.window = pad(projected, {std::max<int64_t>(0, before - length), 0})
                     .slice(2, std::max<int64_t>(0, length - before), std::max(length, before))
                     .clone();
  const auto x = split(causal_conv1d(projected, mixer.short_filter_.weight, mixer.short_filter_.bias), o.d_model, 1);
  const Tensor filters = mixer.filter_fn_.filters(length + capacity_);
  layer.taps = filters.slice(2, 0, capacity_).clone();
  layer.skip = mixer.filter_fn_.skips().clone();
  layer.inputs = zeros({batch, o.order - 1, o.d_model, capacity_}, tokens.options());
  layer.pending = empty_like(layer.inputs);
  Tensor v = x.back();
  for (int64_t i = 0; i < o.order - 1; ++i) {
    const Tensor u = v * x[static_cast<std::size_t>(o.order - 1 - i)];
    const Tensor sums = long_conv(pad(u, {0, capacity_}), filters[i], layer.skip[i]);
    layer.pending.select(1, i).copy_(sums.slice(2, length, length + capacity_));
    v = sums.slice(2, 0, length);
  }
  return mixer.out_proj_((v * x[0]).transpose(1, 2));
}

Tensor HyenaDecoder::prefill(const Tensor& ids) {
  const NoGradGuard no_grad;
  const int64_t l_max = model_->options().mixer.l_max;
  if (ids.rank() != 2 || ids.size(1) < 1 || ids.size(1) + capacity_ > l_max) {
    fail("HyenaDecoder: ids expected [B, P] with 1 <= P and P + capacity ", capacity_, " <= l_max ", l_max, ", got ",
         ids.shape());
  }
  auto& backbone = model_->backbone_;
  layers_.clear();
  replay_ = nullptr;
  steps_ = 0;
  HyenaLM::Branch x{backbone.embeddings.word_embeddings(ids)};
  Tensor residual;
  for (HyenaLM::Block* block : backbone.layers) {
    const Tensor first = HyenaLM::add_and_norm(x, 0, residual, block->norm1, false);
    const HyenaLM::Branch mixed{mix(block->mixer, first, layers_.emplace_back())};
    const Tensor hidden = HyenaLM::add_and_norm(mixed, 0, residual, block->norm2, false, &block->mlp.fc1);
    x = {block->mlp.forward_without_biases(hidden), block->mlp.fc2.bias};
  }
  // Only the last token's state goes on.
  const auto last = [](const Tensor& t) { return t.slice(1, -1, t.size(1)).contiguous(); };
  residual = last(residual);
  const Tensor hidden = HyenaLM::add_and_norm({last(x.values), x.bias}, 0, residual, backbone.ln_f, false);
  ids_ = ids.select(1, -1).clone();
  position_ = zeros({1}, {.dtype = DType::Int64, .device = ids.device()});
  logits_ = model_->logits(hidden).select(1, 0).contiguous();
  return logits_;
}

/// The mixer of one token's projections [B, (order + 1) d_model], which lack their bias.
Tensor HyenaDecoder::mix_one(HyenaOperator& mixer, const Tensor& projections, const Layer& layer) const {
  const HyenaOptions& o = mixer.options_;
  const HyenaStepProblem problem{.batch = projections.size(0),
                                 .channels = o.d_model,
                                 .order = o.order,
                                 .kernel = o.short_filter,
                                 .capacity = capacity_};
  const Tensor weight = mixer.short_filter_.weight;
  const Tensor mixed = ops::hyena_step(problem, {.projections = projections,
                                                 .projection_bias = mixer.in_proj_.bias,
                                                 .short_weight = weight.reshape({weight.size(0), o.short_filter}),
                                                 .short_bias = mixer.short_filter_.bias,
                                                 .taps = layer.taps,
                                                 .skip = layer.skip,
                                                 .position = position_,
                                                 .window = layer.window,
                                                 .inputs = layer.inputs,
                                                 .pending = layer.pending});
  return linear(mixed, mixer.out_proj_.weight);
}

void HyenaDecoder::advance() {
  auto& backbone = model_->backbone_;
  HyenaLM::Branch x{backbone.embeddings.word_embeddings(ids_)};
  Tensor residual;
  std::size_t index = 0;
  for (HyenaLM::Block* block : backbone.layers) {
    HyenaOperator& mixer = block->mixer;
    const Tensor projections = HyenaLM::add_and_norm(x, 0, residual, block->norm1, false, &mixer.in_proj_);
    const HyenaLM::Branch mixed{mix_one(mixer, projections, layers_[index++]), mixer.out_proj_.bias};
    const Tensor hidden = HyenaLM::add_and_norm(mixed, 0, residual, block->norm2, false, &block->mlp.fc1);
    x = {block->mlp.forward_without_biases(hidden), block->mlp.fc2.bias};
  }
  logits_.copy_(model_->logits(HyenaLM::add_and_norm(x, 0, residual, backbone.ln_f, false)));
  position_.copy_(position_ + ones_like(position_));
}

Tensor HyenaDecoder::step(const Tensor& ids) {
  const NoGradGuard no_grad;
  if (layers_.empty()) fail("HyenaDecoder: step expected after prefill");
  if (room() == 0) fail("HyenaDecoder: expected at most ", capacity_, " tokens after the prefix, got another");
  if (ids.shape() != ids_.shape()) fail("HyenaDecoder: ids expected ", ids_.shape(), ", got ", ids.shape());
  ids_.copy_(ids);
  // The first step runs as it is, so that nothing has to be set up while the second is recorded.
  if (steps_ == 1 && recorder_) replay_ = recorder_([this] { advance(); });
  if (replay_) {
    replay_();
  } else {
    advance();
  }
  ++steps_;
  if (steps_ % kBlock == 0 && room() > 0) end_block();
  return logits_;
}

void HyenaDecoder::end_block() {
  const int64_t blocks = steps_ / kBlock, count = (blocks & -blocks) * kBlock;
  const int64_t reach = std::min(count, room());
  for (Layer& layer : layers_) {
    const Shape shape = layer.inputs.shape();  // [B, order - 1, D, capacity]
    const Shape rows{shape[0], shape[1] * shape[2], shape[3]};
    const Tensor u = layer.inputs.reshape(rows).slice(2, steps_ - count, steps_);
    const Tensor taps = layer.taps.reshape({rows[1], capacity_}).slice(1, 0, count + reach);
    const Tensor sums = long_conv(pad(u, {0, reach}), taps).slice(2, count, count + reach);
    layer.pending.reshape(rows).slice(2, steps_, steps_ + reach).add_(sums);
  }
}

}  // namespace halo::models
