#include <halo/core/error.h>
#include <halo/nn/models/recall.h>

#include <vector>

namespace halo::models {

RecallBatch make_recall_batch(const RecallOptions& o, Generator& generator) {
  if (o.batch < 0 || o.pairs < 1 || o.vocab_size < 2 || o.vocab_size % 2 != 0) {
    fail("make_recall_batch: expected at least one pair and an even vocab_size, got ", o.pairs, " and ", o.vocab_size);
  }
  const int64_t keys = o.vocab_size / 2, length = 2 * o.pairs + 1;
  // Draws of a sequence: the value of each key, the key of each pair, the pair that is asked for.
  const int64_t draws = keys + o.pairs + 1;
  const PhiloxState state = generator.reserve(static_cast<uint64_t>(o.batch * draws));
  std::vector<int64_t> ids, target;
  ids.reserve(static_cast<std::size_t>(o.batch * length));
  for (int64_t b = 0; b < o.batch; ++b) {
    const auto draw = [&](int64_t i, int64_t range) {
      return static_cast<int64_t>(random_bits64(state, static_cast<uint64_t>(b * draws + i)) %
                                  static_cast<uint64_t>(range));
    };
    const auto value_of = [&](int64_t key) { return keys + draw(key, keys); };
    for (int64_t i = 0; i < o.pairs; ++i) {
      const int64_t key = draw(keys + i, keys);
      ids.push_back(key);
      ids.push_back(value_of(key));
    }
    const int64_t asked = draw(keys + draw(keys + o.pairs, o.pairs), keys);
    ids.push_back(asked);
    target.push_back(value_of(asked));
  }
  return {from_vector(ids, {o.batch, length}), from_vector(target, {o.batch})};
}

HyenaLMOptions recall_model_options(const RecallOptions& o) {
  return {.mixer = {.d_model = 64, .l_max = 2 * o.pairs + 1, .filter_order = 64, .w = 10},
          .n_layer = 2,
          .vocab_size = o.vocab_size,
          .embed_dropout = 0};
}

Tensor recall_logits(HyenaLM& model, const Tensor& ids) { return model.logits(model.hidden(ids).select(1, -1)); }

}  // namespace halo::models
