#include "dna_data.h"

#include <halo/core/error.h>
#include <halo/data/fasta.h>
#include <halo/nn/models/dna_tokenizer.h>

namespace example {

std::string load_genome(const std::string& path) {
  if (path.empty()) return halo::data::read_two_bit(std::string(HALO_EXAMPLE_DATA) + "/ecoli.2bit");
  if (path.ends_with(".2bit")) return halo::data::read_two_bit(path);
  std::string genome;
  for (const auto& record : halo::data::read_fasta(path)) genome += record.sequence;
  return genome;
}

halo::Tensor random_windows(const std::string& genome, int64_t batch, int64_t length, halo::Generator& generator) {
  const auto size = static_cast<int64_t>(genome.size());
  if (size <= length) halo::fail("random_windows: genome expected more than ", length, " bases, got ", size);
  const auto starts = halo::randint(0, size - length, {batch}, {.dtype = halo::int64}, generator).to_vector<int64_t>();
  const auto strands = halo::randint(0, 2, {batch}, {.dtype = halo::int64}, generator).to_vector<int64_t>();
  std::vector<int64_t> ids;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    std::string window = genome.substr(static_cast<std::size_t>(starts[i]), static_cast<std::size_t>(length) + 1);
    if (strands[i] == 1) window = halo::data::reverse_complement(window);
    for (int64_t id : halo::models::encode_dna(window, {.sep = false})) ids.push_back(id);
  }
  return halo::from_vector(ids, {batch, length + 1});
}

}  // namespace example
