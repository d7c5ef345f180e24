#include <halo/data/fasta.h>

#include "fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, std::size_t size) {
  return halo::fuzz::run(bytes, size, [](const std::string& path) {
    for (const auto& record : halo::data::read_fasta(path)) halo::data::reverse_complement(record.sequence);
  });
}
