#include "tests/conformance/models.h"

#include <halo/halo.h>

namespace halo::conformance {
namespace {

/// The loss, its gradients by every parameter, and the other outputs.
void finish(nn::Module& model, const Tensor& loss, Result& result) {
  std::vector<Tensor> parameters;
  for (const auto& named : model.named_parameters()) parameters.push_back(named.tensor);
  const auto grads = grad({loss}, parameters);
  std::size_t i = 0;
  for (const auto& named : model.named_parameters()) result.outputs["grad." + named.name] = grads[i++];
  result.outputs["loss"] = loss.detach().reshape({1});
}

void place(nn::Module& model, const Case& c) {
  model.to(c.setting().dtype);
  model.to(c.setting().device);
  model.train(c.flag("training", false));
}

}  // namespace

void run_alexnet(Case& c, Result& result) {
  models::AlexNet model({.variant = c.text("variant", "torchvision") == "original"
                                        ? models::AlexNetVariant::Original
                                        : models::AlexNetVariant::Torchvision,
                         .channels = c.integers("channels", {}),
                         .hidden = c.integer("hidden", 4096),
                         .num_classes = c.integer("num_classes", 1000)});
  StateDict weights;
  for (const auto& [name, tensor] : c.tensors()) {
    if (name.starts_with("features.") || name.starts_with("classifier.")) weights.emplace(name, tensor);
  }
  place(model, c);
  model.load_state_dict(weights);
  const Tensor logits = model(c.input("input"));
  result.outputs["logits"] = logits.detach();
  finish(model, cross_entropy(logits, c.raw("target")), result);
}

void run_hyenadna(Case& c, Result& result) {
  models::HyenaLMOptions options;
  options.mixer = {.d_model = c.integer("d_model", 128),
                   .order = c.integer("order", 2),
                   .l_max = c.integer("l_max", 1024),
                   .filter_order = c.integer("filter_order", 64),
                   .num_inner_mlps = c.integer("num_inner_mlps", 2),
                   .emb_dim = c.integer("emb_dim", 5),
                   .w = c.real("w", 10),
                   .train_z = c.has("grad.backbone.layers.0.mixer.filter_fn.pos_emb.z"),
                   .shift = c.real("shift", 0.05)};
  options.n_layer = c.integer("n_layer", 2);
  options.d_inner = c.integer("d_inner", 0);
  options.vocab_size = c.integer("vocab_size", 16);
  models::HyenaLM model(options);
  place(model, c);
  models::load_hyenadna(model, c.tensors());
  const Tensor ids = c.raw("input_ids");
  const Tensor hidden = model.hidden(ids), logits = model.logits(hidden);
  result.outputs["hidden"] = hidden.detach();
  result.outputs["logits"] = logits.detach();
  const Tensor predicted = logits.slice(1, 0, -1).flatten(0, 1), next = ids.slice(1, 1, ids.size(1)).flatten();
  finish(model, cross_entropy(predicted, next), result);
}

}  // namespace halo::conformance
