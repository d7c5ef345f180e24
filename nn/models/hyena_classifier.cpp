#include <halo/autograd/arithmetic.h>
#include <halo/autograd/reduce.h>
#include <halo/nn/models/dna_tokenizer.h>
#include <halo/nn/models/hyena_classifier.h>

namespace halo::models {

HyenaClassifier::HyenaClassifier(const HyenaLMOptions& options, int64_t classes, SequencePooling pooling)
    : pooling_(pooling),
      model_(register_module("model", HyenaLM(options))),
      head_(register_module("head", nn::Linear(options.mixer.d_model, classes))) {}

Tensor HyenaClassifier::forward(const Tensor& ids) {
  const Tensor states = model_.hidden(ids);
  if (pooling_ == SequencePooling::Last) return head_(states.select(1, -1));
  const Tensor counted = ne(ids, int64_t{kPad}).to(states.dtype());  // [B, L]
  const Tensor total = sum(states * counted.unsqueeze(2), {1});
  return head_(total / maximum(sum(counted, {1}, true), ones({}, counted.options())));
}

}  // namespace halo::models
