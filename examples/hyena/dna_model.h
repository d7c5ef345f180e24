// Saving and loading the DNA model with what decides its shape.
#pragma once

#include <halo/nn/models/hyena.h>

#include <string>

namespace example {

struct DnaSpec {
  int64_t d_model = 64, layers = 2, l_max = 256;

  halo::models::HyenaLMOptions options() const;
  halo::Metadata metadata() const;
  static DnaSpec from(const halo::Metadata& metadata);
};

/// Mean cross-entropy (nats a base) of the last `counted` predictions of each row of ids [B, L + 1].
halo::Tensor next_base_loss(halo::models::HyenaLM& model, const halo::Tensor& ids, int64_t counted);

/// Bits a base over `sequence`: windows of l_max tokens that overlap by half, so that every base but the very first
/// ones is predicted from at least l_max / 2 bases. At most `most` windows, spread evenly; 0: all.
double bits_per_base(halo::models::HyenaLM& model, const std::string& sequence, int64_t l_max, int64_t most,
                     halo::Device device);

}  // namespace example
