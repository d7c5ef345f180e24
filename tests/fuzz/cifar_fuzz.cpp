#include <halo/data/images.h>

#include "fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, std::size_t size) {
  return halo::fuzz::run(bytes, size,
                         [](const std::string& path) { halo::fuzz::touch(halo::data::read_cifar10({path}).images); });
}
