// A classifier of DNA in a file: what dna_classify writes and dna_use reads.
#pragma once

#include <halo/nn/models/hyena_classifier.h>

#include <string>
#include <vector>

#include "dna_model.h"

namespace example {

struct DnaClassifierSpec {
  DnaSpec model{};
  std::vector<std::string> classes{};
  int64_t length = 0;  ///< bases that are looked at
  halo::models::SequencePooling pooling = halo::models::SequencePooling::Mean;

  halo::Metadata metadata() const;
  /// @throws FileError where the metadata is not that of a classifier.
  static DnaClassifierSpec from(const halo::Metadata& metadata);
  halo::models::HyenaClassifier make() const;
};

/// Token numbers [sequences, length]: padded in front, and without what is beyond `length` bases.
halo::Tensor classifier_tokens(const std::vector<std::string>& sequences, int64_t length);

}  // namespace example
