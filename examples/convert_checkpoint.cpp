// Turns weights that PyTorch saved into safetensors, for HyenaDNA's and torchvision's published checkpoints and any
// other. Nothing in the file is run: its pickle is read as data.
//
//   convert_checkpoint weights.ckpt model.safetensors
#include <halo/halo.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: convert_checkpoint IN.ckpt OUT.safetensors\n");
    return 2;
  }
  try {
    const halo::StateDict weights = halo::load_pytorch(argv[1]);
    halo::save_safetensors(argv[2], weights);
    int64_t values = 0;
    for (const auto& [name, tensor] : weights) values += tensor.numel();
    std::printf("%zu tensors, %lld values, in %s\n", weights.size(), static_cast<long long>(values), argv[2]);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "convert_checkpoint: %s\n", e.what());
    return 2;
  }
}
