#include "dna_model.h"

#include <halo/core/error.h>
#include <halo/halo.h>
#include <halo/nn/models/dna_tokenizer.h>

#include <cmath>

#include "examples/common/program.h"

namespace example {

using namespace halo;

models::HyenaLMOptions DnaSpec::options() const {
  models::HyenaLMOptions o;
  o.mixer.d_model = d_model;
  o.mixer.l_max = l_max;
  o.n_layer = layers;
  o.embed_dropout = 0;
  return o;
}

Metadata DnaSpec::metadata() const {
  return {{"d_model", std::to_string(d_model)}, {"layers", std::to_string(layers)}, {"l_max", std::to_string(l_max)}};
}

DnaSpec DnaSpec::from(const Metadata& metadata) {
  return {metadata_number(metadata, "d_model"), metadata_number(metadata, "layers"),
          metadata_number(metadata, "l_max")};
}

Tensor next_base_loss(models::HyenaLM& model, const Tensor& ids, int64_t counted) {
  const int64_t length = ids.size(1) - 1;
  const Tensor logits = model(ids.slice(1, 0, length)).slice(1, length - counted, length);
  return cross_entropy(logits.flatten(0, 1), ids.slice(1, length + 1 - counted, length + 1).flatten());
}

double bits_per_base(models::HyenaLM& model, const std::string& sequence, int64_t l_max, int64_t most, Device device) {
  constexpr int64_t kBatch = 16;
  const NoGradGuard no_grad;
  model.eval();
  const int64_t half = l_max / 2, windows = (static_cast<int64_t>(sequence.size()) - l_max - 1) / half + 1;
  if (windows < 1) fail("bits_per_base: sequence expected more than ", l_max, " bases, got ", sequence.size());
  const int64_t used = most > 0 ? std::min(windows, most) : windows;
  double nats = 0;
  for (int64_t first = 0; first < used; first += kBatch) {
    const int64_t count = std::min(kBatch, used - first);
    std::vector<int64_t> ids;
    for (int64_t i = first; i < first + count; ++i) {
      const int64_t start = (i * windows / used) * half;
      for (int64_t id : models::encode_dna(
               std::string_view(sequence).substr(static_cast<std::size_t>(start), static_cast<std::size_t>(l_max) + 1),
               {.sep = false})) {
        ids.push_back(id);
      }
    }
    const Tensor batch = from_vector(ids, {count, l_max + 1}).to(device);
    nats += next_base_loss(model, batch, l_max - half).item() * static_cast<double>(count);
  }
  model.train();
  return nats / static_cast<double>(used) / std::log(2.0);
}

}  // namespace example
