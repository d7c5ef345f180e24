// Tensors, vectors, models and exceptions pass between this program and Halo, whatever flags either was built with.
#include <halo/halo.h>

#include <cstdio>
#include <vector>

struct Net : halo::nn::Module {
  halo::nn::Conv2d& conv = register_module("conv", halo::nn::Conv2d(3, 4, 3, {.stride = 2, .padding = 1}));
  halo::Tensor forward(const halo::Tensor& x) override { return halo::relu(conv(x)); }
};

int main() {
  Net net;
  const halo::Tensor x = halo::randn({1, 3, 8, 8});
  net(x).sum().backward();
  halo::optim::AdamW optimizer(net.parameters(), {.lr = 0.1});
  optimizer.step();
  const std::vector<float> values = net.conv.weight.grad().to_vector<float>();
  halo::StateDict state = net.state_dict();
  state["own"] = halo::from_vector(values, {static_cast<int64_t>(values.size())});
  try {
    halo::conv1d(x, x);  // one axis too many
    return 1;
  } catch (const halo::ArgumentError& error) {
    std::printf("%s\n%s\n", net.conv.weight.grad().describe().c_str(), error.what());
  }
  return values.size() == 4 * 3 * 3 * 3 ? 0 : 1;
}
