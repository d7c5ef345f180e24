// Generating with a Hyena language model, token by token, without going through the sequence again.
#pragma once

#include <halo/nn/models/hyena.h>

#include <functional>
#include <vector>

namespace halo::models {

/// Gives the logits after each token of a growing sequence, equal to those of model(ids) to rounding.
///
/// prefill() reads a prefix and works out what it contributes to the next `capacity` outputs of every long convolution,
/// in one transform each. From then on step() sums what the tokens of the current block of
/// HyenaStepProblem::kBlock contribute; at the end of block m the last 2^k blocks, 2^k the largest power that divides
/// m, are added to what the next 2^k outputs expect. So a token costs the same after a long prefix as after a short
/// one.
///
/// Works as in evaluation (no dropout), records nothing, and sees the model's weights as they were at prefill().
class HyenaDecoder {
 public:
  /// At most `capacity` tokens follow a prefix. The model must outlive the decoder. @throws ArgumentError below 1.
  HyenaDecoder(HyenaLM& model, int64_t capacity);

  /// Starts over with ids [B, P] (int64, on the model's device), P + capacity <= l_max: logits after the last token,
  /// [B, vocabulary]. @throws ArgumentError for other ids.
  Tensor prefill(const Tensor& ids);
  /// Appends a token to each sequence, ids [B]: logits after it, [B, vocabulary], valid until the next step.
  /// @throws ArgumentError before prefill, for other ids, and once capacity tokens have followed.
  Tensor step(const Tensor& ids);
  /// Tokens that may still follow.
  int64_t room() const { return capacity_ - steps_; }

  /// Makes of a body a function that repeats it with the same tensors. With one, steps are recorded once and replayed:
  /// on a GPU as a graph, [&](auto& body) { return [g = cuda::Graph::capture(device, body)] { g.replay(); }; }.
  using Recorder = std::function<std::function<void()>(const std::function<void()>& body)>;
  void record_with(Recorder recorder) { recorder_ = std::move(recorder); }

 private:
  struct Layer {
    Tensor window, inputs, pending;  ///< as HyenaStepTensors has them
    Tensor taps, skip;
  };
  Tensor mix(HyenaOperator& mixer, const Tensor& tokens, Layer& layer) const;
  Tensor mix_one(HyenaOperator& mixer, const Tensor& projections, const Layer& layer) const;
  /// The body of a step: from ids_ to logits_.
  void advance();
  void end_block();

  HyenaLM* model_;
  int64_t capacity_, steps_ = 0;
  std::vector<Layer> layers_;
  Tensor ids_, position_, logits_;
  Recorder recorder_;
  std::function<void()> replay_;
};

}  // namespace halo::models
