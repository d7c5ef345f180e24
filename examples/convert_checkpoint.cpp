// Turns weights that PyTorch saved into safetensors, for HyenaDNA's and torchvision's published checkpoints and any
// other. Nothing in the file is run: its pickle is read as data.
//
//   convert_checkpoint weights.ckpt model.safetensors
#include <halo/halo.h>

#include <cstdio>

#include "examples/common/program.h"
#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  CLI::App app{"Turns weights that PyTorch saved into safetensors", "convert_checkpoint"};
  std::string from, to;
  app.add_option("in", from, "file of torch.save")->required()->check(CLI::ExistingFile);
  app.add_option("out", to, "safetensors file to write")->required();
  return example::run_program(app, argc, argv, [&] {
    const halo::StateDict weights = halo::load_pytorch(from);
    halo::save_safetensors(to, weights);
    int64_t values = 0;
    for (const auto& [name, tensor] : weights) values += tensor.numel();
    std::printf("%zu tensors, %lld values, in %s\n", weights.size(), static_cast<long long>(values), to.c_str());
    return 0;
  });
}
