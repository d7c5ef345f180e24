#include <halo/io/pytorch.h>

#include "fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, std::size_t size) {
  return halo::fuzz::run(bytes, size, [](const std::string& path) {
    for (const auto& [name, tensor] : halo::load_pytorch(path)) halo::fuzz::touch(tensor);
  });
}
