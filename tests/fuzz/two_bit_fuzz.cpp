#include <halo/data/fasta.h>

#include "fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, std::size_t size) {
  return halo::fuzz::run(bytes, size, [](const std::string& path) { halo::data::read_two_bit(path); });
}
