// The pickle inside a file of torch.save: the input is the pickle, in an archive whose sums are right.
#include <halo/io/pytorch.h>

#include "fuzz_file.h"
#include "tests/io/bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, std::size_t size) {
  const std::string pickle(reinterpret_cast<const char*>(bytes), size);
  const std::string file = halo::testing::zip({{"a/data.pkl", pickle}, {"a/data/0", std::string(24, 'x')}});
  return halo::fuzz::run(reinterpret_cast<const uint8_t*>(file.data()), file.size(), [](const std::string& path) {
    for (const auto& [name, tensor] : halo::load_pytorch(path)) halo::fuzz::touch(tensor);
  });
}
