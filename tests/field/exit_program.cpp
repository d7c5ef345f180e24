// Field case 41. All work done, then an abort at exit: a global or thread-local tensor frees its memory after the
// driver or the allocator has gone. The argument picks the way out; the exit code must be 0 and nothing may be said.
#include <halo/halo.h>

#include <cstdlib>
#include <string>
#include <thread>

namespace {

halo::Tensor global_tensor;
thread_local halo::Tensor thread_tensor;

halo::nn::Sequential& static_model() {
  static halo::nn::Sequential net(halo::nn::Conv2d(1, 2, 3), halo::nn::ReLU());
  return net;
}

[[noreturn]] void leave_holding_tensors(const halo::Tensor& x) {
  const halo::Tensor held = halo::relu(x);
  std::exit(held.numel() > 0 ? 0 : 1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string way = argc > 1 ? argv[1] : "return";
  const halo::Device device = halo::Device::best();
  global_tensor = halo::ones({1, 1, 8, 8}, {.device = device});
  thread_tensor = global_tensor + 1.0;
  static_model().to(device);
  static_model()(global_tensor).sum().backward();
  std::thread([&] { thread_tensor = halo::relu(global_tensor); }).join();
  if (way == "exit") leave_holding_tensors(global_tensor);
  if (way == "loader") {
    std::thread([&] {
      for (;;) halo::randn({100});
    }).detach();
  }
  return 0;
}
