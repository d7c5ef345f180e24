// A class for a whole sequence: the head that fine-tuned HyenaDNA models have.
#pragma once

#include <halo/nn/models/hyena.h>

namespace halo::models {

/// How the states of a sequence become one: their mean, or the last one.
enum class SequencePooling { Mean, Last };

/// A HyenaLM without its language head, pooled over what is not padding, and a linear layer. Sequences are padded in
/// front (DnaTokenizerOptions::pad_to).
class HyenaClassifier : public nn::Module {
 public:
  HyenaClassifier(const HyenaLMOptions& options, int64_t classes, SequencePooling pooling = SequencePooling::Mean);
  /// Token numbers [B, L] (int64, L <= l_max) to logits [B, classes]. @throws ArgumentError for others.
  Tensor forward(const Tensor& ids) override;
  /// The language model, to load published or pretrained weights into.
  HyenaLM& language_model() { return model_; }

 private:
  SequencePooling pooling_;
  HyenaLM& model_;
  nn::Linear& head_;
};

}  // namespace halo::models
