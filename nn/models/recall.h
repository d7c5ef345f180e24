// Associative recall: the task that shows whether a model can look something up in its own context (Poli et al., "Hyena
// hierarchy", ICML 2023, appendix A).
#pragma once

#include <halo/core/generator.h>
#include <halo/nn/models/hyena.h>

namespace halo::models {

struct RecallOptions {
  int64_t batch = 32;
  int64_t pairs = 16;       ///< of key and value in each sequence
  int64_t vocab_size = 20;  ///< even: the lower half are keys, the upper half values
};

/// Sequences k v k v ... k, each with its own dictionary, and what must follow the last key (one that came before).
/// @throws ArgumentError for no pair, or an odd vocab_size.
struct RecallBatch {
  Tensor ids;     ///< [batch, 2 pairs + 1], int64
  Tensor target;  ///< [batch], int64
};
RecallBatch make_recall_batch(const RecallOptions& options, Generator& generator = default_generator());

/// A Hyena language model for that task: two layers of width 64, filters of width 64 with sines of frequency 10.
HyenaLMOptions recall_model_options(const RecallOptions& options);

/// Logits [batch, vocabulary] after the last token.
Tensor recall_logits(HyenaLM& model, const Tensor& ids);

}  // namespace halo::models
