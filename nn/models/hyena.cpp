#include <halo/autograd/arithmetic.h>
#include <halo/autograd/causal_conv1d.h>
#include <halo/autograd/checkpoint.h>
#include <halo/autograd/concat.h>
#include <halo/autograd/dropout.h>
#include <halo/autograd/gated_long_conv.h>
#include <halo/autograd/gelu_linear.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/long_conv.h>
#include <halo/autograd/matmul.h>
#include <halo/autograd/residual_norm.h>
#include <halo/core/error.h>
#include <halo/nn/init.h>
#include <halo/nn/models/hyena.h>
#include <halo/ops/token_filter.h>

#include <algorithm>
#include <cmath>

namespace halo::models {

// --- The operator ---------------------------------------------------------------------------------------------------

HyenaOperator::HyenaOperator(const HyenaOptions& o)
    : options_(o),
      in_proj_(register_module("in_proj", nn::Linear(o.d_model, (o.order + 1) * o.d_model))),
      out_proj_(register_module("out_proj", nn::Linear(o.d_model, o.d_model))),
      short_filter_(register_module("short_filter", nn::Conv1d((o.order + 1) * o.d_model, (o.order + 1) * o.d_model,
                                                               o.short_filter, {.groups = (o.order + 1) * o.d_model}))),
      filter_fn_(register_module("filter_fn", HyenaFilter(o))) {}

Tensor HyenaOperator::forward(const Tensor& u) {
  if (u.rank() != 3 || u.size(2) != options_.d_model) {
    fail("HyenaOperator: input expected [B, L, ", options_.d_model, "], got ", u.shape());
  }
  const Tensor used = u.size(1) > options_.l_max ? u.slice(1, 0, options_.l_max) : u;
  return forward_without_biases(linear(used, in_proj_.weight)) + out_proj_.bias;
}

Tensor HyenaOperator::forward_without_biases(const Tensor& projections, const Tensor& filter_hidden) {
  const Tensor filters =
      filter_hidden.defined() ? filter_fn_.filters_from(filter_hidden) : filter_fn_.filters(projections.size(1));
  const bool fused = options_.order == 2 && options_.short_filter <= TokenFilterProblem::kMaxKernel &&
                     !(is_training() && options_.dropout > 0) && projections.dtype() != DType::BFloat16 &&
                     projections.dtype() != DType::Float16;
  if (!fused) {
    const Tensor mixed = recurrence((projections + in_proj_.bias).transpose(1, 2), filters).transpose(1, 2);
    return linear(mixed, out_proj_.weight);
  }
  const Tensor mixed = gated_long_conv(projections, in_proj_.bias, short_filter_.weight, short_filter_.bias,
                                       filters.flatten(0, 1), filter_fn_.skips().flatten(), filter_fn_.use_of(filters));
  return linear(mixed, out_proj_.weight);
}

Tensor HyenaOperator::recurrence(const Tensor& projected, const Tensor& filters) {
  const int64_t order = options_.order;
  const auto x = split(causal_conv1d(projected, short_filter_.weight, short_filter_.bias), options_.d_model, 1);
  const Tensor skips = filter_fn_.skips();
  const bool drops = is_training() && options_.dropout > 0;
  Tensor v = x.back();
  for (int64_t i = order - 1; i >= 1; --i) {
    // The gates on both sides of the long convolution go into it, unless dropout stands between.
    LongConvOptions gates;
    if (drops) {
      v = dropout(v * x[static_cast<std::size_t>(i)], options_.dropout);
    } else {
      gates.gate_in = x[static_cast<std::size_t>(i)];
    }
    if (i == 1) gates.gate_out = x[0];
    v = long_conv(v, filters[order - 1 - i], skips[order - 1 - i], gates);
  }
  return v;
}

// --- The language model ---------------------------------------------------------------------------------------------

namespace {

int64_t inner_width(const HyenaLMOptions& o) { return o.d_inner > 0 ? o.d_inner : 4 * o.mixer.d_model; }

int64_t vocabulary_rows(const HyenaLMOptions& o) {
  if (o.vocab_size < 1 || o.vocab_multiple < 1) {
    fail("HyenaLM: vocab_size and vocab_multiple expected 1 or more, got ", o.vocab_size, " and ", o.vocab_multiple);
  }
  return (o.vocab_size + o.vocab_multiple - 1) / o.vocab_multiple * o.vocab_multiple;
}

}  // namespace

HyenaLM::Mlp::Mlp(const HyenaLMOptions& o)
    : activation(o.activation),
      fc1(register_module("fc1", nn::Linear(o.mixer.d_model, inner_width(o)))),
      fc2(register_module("fc2", nn::Linear(inner_width(o), o.mixer.d_model))) {}

Tensor HyenaLM::Mlp::forward(const Tensor& x) { return forward_without_biases(linear(x, fc1.weight)) + fc2.bias; }

Tensor HyenaLM::Mlp::forward_without_biases(const Tensor& h) {
  return gelu_linear(h, fc1.bias, fc2.weight, activation);
}

Tensor HyenaLM::add_and_norm(const Branch& x, double p, Tensor& residual, nn::LayerNorm& norm, bool training,
                             const nn::Linear* next) {
  // The stream is float32 at least, and the norm has the type of its weights.
  const auto wide = [](const Tensor& t) {
    return !t.defined() || t.dtype() == DType::Float64 ? t : t.to(DType::Float32);
  };
  Branch added{wide(x.values), wide(x.bias)};
  if (training && p > 0) added = {dropout(added.bias.defined() ? added.values + added.bias : added.values, p, true)};
  const bool one_dtype = norm.weight.dtype() == added.values.dtype();
  if (one_dtype && next != nullptr) {
    const auto [sum, projected] =
        residual_norm_linear(added.values, added.bias, residual, norm.weight, norm.bias, next->weight, norm.eps());
    residual = sum;
    return projected;
  }
  if (one_dtype) {
    const auto [sum, normed] = residual_norm(added.values, added.bias, residual, norm.weight, norm.bias, norm.eps());
    residual = sum;
    return normed;
  }
  for (const Tensor& t : {added.bias, residual}) {
    if (t.defined()) added.values = added.values + t;
  }
  residual = added.values;
  const Tensor normed = norm(residual.to(norm.weight.dtype()));
  return next == nullptr ? normed : linear(normed, next->weight);
}

HyenaLM::Block::Block(const HyenaLMOptions& o, double dropout)
    : dropout1(dropout),
      dropout2(o.resid_dropout),
      mixer(register_module("mixer", HyenaOperator(o.mixer))),
      norm1(register_module("norm1", nn::LayerNorm(o.mixer.d_model, o.layer_norm_eps))),
      mlp(register_module("mlp", Mlp(o))),
      norm2(register_module("norm2", nn::LayerNorm(o.mixer.d_model, o.layer_norm_eps))) {}

HyenaLM::Branch HyenaLM::Block::step(const Branch& x, Tensor& residual, const Tensor& filter_hidden) {
  const Tensor projections = add_and_norm(x, dropout1, residual, norm1, is_training(), &mixer.in_proj());
  const Branch mixed{mixer.forward_without_biases(projections, filter_hidden), mixer.out_proj().bias};
  const Tensor hidden = add_and_norm(mixed, dropout2, residual, norm2, is_training(), &mlp.fc1);
  return {mlp.forward_without_biases(hidden), mlp.fc2.bias};
}

HyenaLM::Branch HyenaLM::Block::checkpointed_step(const Branch& x, Tensor& residual, const Tensor& filter_hidden) {
  const auto run = [this](const std::vector<Tensor>& in) {
    Tensor stream = in[2];
    const Branch added = step({in[0], in[1]}, stream, in[3]);
    return std::vector<Tensor>{added.values, stream};
  };
  const std::vector<Tensor> results = checkpoint(run, {x.values, x.bias, residual, filter_hidden});
  residual = results[1];
  return {results[0], mlp.fc2.bias};
}

HyenaLM::Embeddings::Embeddings(const HyenaLMOptions& o)
    : word_embeddings(register_module("word_embeddings", nn::Embedding(vocabulary_rows(o), o.mixer.d_model))) {}

HyenaLM::Backbone::Backbone(const HyenaLMOptions& o)
    : embeddings(register_module("embeddings", Embeddings(o))),
      layers(register_module("layers", nn::ModuleList<Block>())),
      ln_f(register_module("ln_f", nn::LayerNorm(o.mixer.d_model, o.layer_norm_eps))) {
  // The embedding's dropout is that of the first block.
  for (int64_t i = 0; i < o.n_layer; ++i) layers.push_back(Block(o, i == 0 ? o.embed_dropout : o.resid_dropout));
}

namespace {

Tensor first_head(const HyenaLMOptions& o, const Tensor& embedding) {
  return o.tied_head ? embedding : empty(embedding.shape());
}

}  // namespace

HyenaLM::HyenaLM(const HyenaLMOptions& options)
    : options_(options),
      backbone_(register_module("backbone", Backbone(options))),
      lm_head_(register_module("lm_head", Head(first_head(options, backbone_.embeddings.word_embeddings.weight)))) {
  initialise();
}

void HyenaLM::initialise() {
  constexpr double kStd = 0.02;
  const double into_residual = kStd / std::sqrt(2 * static_cast<double>(options_.n_layer));
  nn::init::normal_(backbone_.embeddings.word_embeddings.weight, 0, kStd);
  if (!options_.tied_head) nn::init::normal_(lm_head_.weight, 0, kStd);
  for_each_module([&](const std::string& name, nn::Module& module) {
    auto* const linear = dynamic_cast<nn::Linear*>(&module);
    if (linear == nullptr) return;
    const bool projection = name.ends_with("out_proj") || name.ends_with("fc2");
    nn::init::normal_(linear->weight, 0, projection ? into_residual : kStd);
    if (linear->bias.defined()) nn::init::constant_(linear->bias, 0);
  });
}

Tensor HyenaLM::hidden(const Tensor& ids) {
  if (ids.rank() != 2 || ids.size(1) > options_.mixer.l_max) {
    fail("HyenaLM: ids expected [B, L] with L up to l_max ", options_.mixer.l_max, ", got ", ids.shape());
  }
  // In training the filters' networks of all layers run as one. In inference each layer keeps its filters.
  std::vector<HyenaFilter*> filter_fns;
  for (Block* block : backbone_.layers) filter_fns.push_back(&block->mixer.filter_fn());
  std::vector<Tensor> filter_hidden(filter_fns.size());
  if (grad_enabled()) {
    const auto run = [filter_fns, length = ids.size(1)](const std::vector<Tensor>&) {
      return HyenaFilter::hidden(filter_fns, length);
    };
    filter_hidden = options_.checkpoint ? checkpoint(run, {}) : run({});
  }
  Branch x{backbone_.embeddings.word_embeddings(ids)};
  Tensor residual;
  std::size_t layer = 0;
  for (Block* block : backbone_.layers) {
    const Tensor& filter = filter_hidden[layer++];
    x = options_.checkpoint ? block->checkpointed_step(x, residual, filter) : block->step(x, residual, filter);
  }
  return add_and_norm(x, options_.resid_dropout, residual, backbone_.ln_f, is_training());
}

Tensor HyenaLM::logits(const Tensor& hidden) const { return linear(hidden, lm_head_.weight); }

Tensor HyenaLM::forward(const Tensor& ids) { return logits(hidden(ids)); }

// --- Published weights ----------------------------------------------------------------------------------------------

namespace {

void erase_all(std::string& text, std::string_view part, std::string_view instead) {
  for (std::size_t at; (at = text.find(part)) != std::string::npos;) text.replace(at, part.size(), instead);
}

bool is_position_table(const std::string& name) {
  return name.ends_with(".pos_emb.z") || name.ends_with(".pos_emb.t") || name.ends_with(".modulation.deltas");
}

}  // namespace

void load_hyenadna(HyenaLM& model, const StateDict& weights) {
  StateDict state;
  for (const auto& [published, tensor] : weights) {
    if (published.find("torchmetrics") != std::string::npos) continue;
    std::string name = published;
    for (const std::string_view prefix : {"model.", "hyena."}) {
      if (name.starts_with(prefix)) name.erase(0, prefix.size());
    }
    erase_all(name, ".mixer.layer.", ".mixer.");
    erase_all(name, ".mlp.layer.", ".mlp.");
    // Heads for other tasks than the language model's.
    if (name.starts_with("backbone.") || name == "lm_head.weight") state.emplace(name, tensor);
  }
  for (const auto& [name, own] : model.state_dict()) {
    if (is_position_table(name)) state.emplace(name, own);  // does nothing where the file has it
  }
  model.load_state_dict(state);
}

}  // namespace halo::models
