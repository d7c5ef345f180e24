#include "dna_classifier.h"

#include <halo/core/error.h>
#include <halo/nn/models/dna_tokenizer.h>

#include "examples/common/program.h"

namespace example {

using namespace halo;
using models::SequencePooling;

Metadata DnaClassifierSpec::metadata() const {
  Metadata result = model.metadata();
  result["length"] = std::to_string(length);
  result["pooling"] = pooling == SequencePooling::Last ? "last" : "mean";
  for (std::size_t i = 0; i < classes.size(); ++i) result[concat("class.", i)] = classes[i];
  return result;
}

DnaClassifierSpec DnaClassifierSpec::from(const Metadata& metadata) {
  DnaClassifierSpec spec{.model = DnaSpec::from(metadata), .length = metadata_number(metadata, "length")};
  if (const auto pooling = metadata.find("pooling"); pooling != metadata.end() && pooling->second == "last") {
    spec.pooling = SequencePooling::Last;
  }
  for (;;) {
    const auto found = metadata.find(concat("class.", spec.classes.size()));
    if (found == metadata.end()) break;
    spec.classes.push_back(found->second);
  }
  if (spec.classes.empty() || spec.length > spec.model.l_max) {
    fail<FileError>("model: expected classes and a length of at most l_max in its metadata: dna_classify writes them");
  }
  return spec;
}

models::HyenaClassifier DnaClassifierSpec::make() const {
  return models::HyenaClassifier(model.options(), static_cast<int64_t>(classes.size()), pooling);
}

Tensor classifier_tokens(const std::vector<std::string>& sequences, int64_t length) {
  std::vector<int64_t> ids;
  for (const std::string& sequence : sequences) {
    const auto row = models::encode_dna(sequence, {.sep = false, .max_length = length, .pad_to = length});
    ids.insert(ids.end(), row.begin(), row.end());
  }
  return from_vector(ids, {static_cast<int64_t>(sequences.size()), length});
}

}  // namespace example
