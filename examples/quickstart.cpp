// The README's program: define a net with a Conv3d and a ConvTranspose1d, train it, save it.
#include <halo/halo.h>

#include <cstdio>

using namespace halo;

// Volumes [N, 1, 8, 16, 16] to their mean profile along the width [N, 1, 16].
struct Net : nn::Module {
  nn::Conv3d& down = register_module("down", nn::Conv3d(1, 16, 3, {.stride = 2, .padding = 1}));
  nn::ConvTranspose1d& up = register_module("up", nn::ConvTranspose1d(16, 1, 4, {.stride = 2, .padding = 1}));

  Tensor forward(const Tensor& x) override {
    const Tensor features = leaky_relu(down(x));  // [N, 16, 4, 8, 8]
    return up(mean(features, {2, 3}));            // [N, 16, 8] -> [N, 1, 16]
  }
};

int main() {
  manual_seed(1);
  const Device device = Device::best();
  Net net;
  net.to(device);
  optim::AdamW optimizer(net.parameters(), {.lr = 1e-2});
  for (int step = 1; step <= 300; ++step) {
    const Tensor volumes = randn({16, 1, 8, 16, 16}, {.device = device});
    const Tensor loss = mse_loss(net(volumes), mean(volumes, {2, 3}));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step % 100 == 0) std::printf("step %d  loss %.6f\n", step, loss.item());
  }
  save_safetensors("quickstart.safetensors", net.state_dict());
}
