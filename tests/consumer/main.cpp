#include <halo/halo.h>

#include <cstdio>

int main() {
  const halo::Tensor x = halo::randn({1, 3, 8, 8}), w = halo::randn({4, 3, 3, 3}).requires_grad_();
  halo::conv2d(x, w, {}, {.stride = 2, .padding = 1}).sum().backward();
  std::printf("%s\n", w.grad().describe().c_str());
  return w.grad().shape() == w.shape() ? 0 : 1;
}
