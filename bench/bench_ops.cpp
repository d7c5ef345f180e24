// halo_bench_ops: the time of bandwidth-bound functions on a device against the bytes they have to move.
//
// halo_bench_ops [cuda|cpu] [COPY_TBPS]: one line an op: milliseconds (median), the floor (passes over the tensor
// divided by the copy bandwidth, read plus write) and their ratio.
#include <halo/halo.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "wall_time.h"

namespace halo::bench {
namespace {

struct Case {
  std::string name;
  double bytes;  ///< that the function has to read and write
  std::function<void()> body;
};

/// The gradient function of `f` at x, as a body of its own: forward is done once.
std::function<void()> backward_of(const Tensor& x, const std::function<Tensor(const Tensor&)>& f) {
  const Tensor leaf = x.detach().clone().requires_grad_();
  const Tensor y = f(leaf), g = ones_like(y);
  return [=] { grad({y}, {leaf}, {g}, {.retain_graph = true}); };
}

std::vector<Case> cases(Device device) {
  const TensorOptions options{.device = device};
  const Tensor flat = randn({64 << 20}, options), rows = randn({65536, 1024}, options);
  const Tensor images = randn({128, 96, 55, 55}, options), channels = ones({96}, options),
               ones_row = ones({1024}, options);
  const Tensor labels = randint(0, 1024, {65536}).to(device), tokens = randint(0, 16, {1 << 18}).to(device);
  const Tensor table = randn({16, 256}, options), mean = zeros({96}, options), var = ones({96}, options);
  const auto bytes = [](const Tensor& t, double passes) { return passes * static_cast<double>(t.nbytes()); };

  std::vector<Case> list{
      {"copy", bytes(flat, 2), [=] { flat.clone(); }},
      {"fill", bytes(flat, 1), [=] { zeros_like(flat); }},
      {"relu", bytes(flat, 2), [=] { relu(flat); }},
      {"gelu", bytes(flat, 2), [=] { gelu(flat); }},
      {"add", bytes(flat, 3), [=] { flat + flat; }},
      {"add a row", bytes(rows, 2), [=] { rows + ones_row; }},
      {"transpose", bytes(rows, 2), [=] { rows.transpose(0, 1).contiguous(); }},
      {"rand", bytes(flat, 1), [=] { rand({64 << 20}, options); }},
      {"randn", bytes(flat, 1), [=] { randn({64 << 20}, options); }},
      {"dropout", bytes(flat, 2), [=] { dropout(flat, 0.5); }},
      {"sum", bytes(flat, 1), [=] { sum(flat); }},
      {"sum of rows", bytes(rows, 1), [=] { sum(rows, {1}); }},
      {"sum of columns", bytes(rows, 1), [=] { sum(rows, {0}); }},
      {"softmax", bytes(rows, 2), [=] { softmax(rows, 1); }},
      {"cross_entropy", bytes(rows, 1), [=] { cross_entropy(rows, labels); }},
      {"layer_norm", bytes(rows, 2), [=] { layer_norm(rows, {1024}, ones_row, ones_row); }},
      {"group_norm", bytes(images, 2), [=] { group_norm(images, 8, channels, channels); }},
      {"batch_norm", bytes(images, 3), [=] { batch_norm(images, mean, var, channels, channels, {.training = true}); }},
      {"local_response_norm", bytes(images, 2), [=] { local_response_norm(images, 5); }},
      {"max_pool2d 3/2", bytes(images, 1.25), [=] { max_pool2d(images, 3, {.stride = 2}); }},
      {"avg_pool2d 3/2", bytes(images, 1.25), [=] { avg_pool2d(images, 3, {.stride = 2}); }},
      {"cumsum", bytes(rows, 2), [=] { cumsum(rows, 1); }},
      {"sort", bytes(rows, 4), [=] { sort(rows, 1); }},
      {"pad", bytes(images, 2), [=] {
         pad(images, {1, 1, 1, 1});
       }}};
  const auto add_backward = [&](const char* name, const Tensor& x, double passes, const auto& f) {
    list.push_back({std::string(name) + " backward", bytes(x, passes), backward_of(x, f)});
  };
  add_backward("relu", flat, 3, [](const Tensor& x) { return relu(x); });
  add_backward("softmax", rows, 3, [](const Tensor& x) { return softmax(x, 1); });
  add_backward("cross_entropy", rows, 2, [=](const Tensor& x) { return cross_entropy(x, labels); });
  add_backward("layer_norm", rows, 3, [](const Tensor& x) { return layer_norm(x, {1024}); });
  add_backward("batch_norm", images, 5,
               [=](const Tensor& x) { return batch_norm(x, mean, var, channels, channels, {.training = true}); });
  add_backward("local_response_norm", images, 3, [](const Tensor& x) { return local_response_norm(x, 5); });
  add_backward("max_pool2d 3/2", images, 1.31, [](const Tensor& x) { return max_pool2d(x, 3, {.stride = 2}); });
  add_backward("avg_pool2d 3/2", images, 1.25, [](const Tensor& x) { return avg_pool2d(x, 3, {.stride = 2}); });
  list.push_back({"embedding backward", 4.0 * 256 * (1 << 18),
                  backward_of(table, [=](const Tensor& w) { return embedding(tokens, w); })});
  return list;
}

}  // namespace
}  // namespace halo::bench

int main(int argc, char** argv) {
  using namespace halo;
  try {
    const Device device = argc > 1 ? Device::parse(argv[1]) : Device::best();
    const double copy_tbps = argc > 2 ? std::atof(argv[2]) : 4.26;
    std::printf("%-30s %10s %10s %8s\n", "op", "ms", "floor ms", "ratio");
    for (const auto& c : bench::cases(device)) {
      const double ms = bench::median_ms(device, 10, 3, c.body), floor = c.bytes / (copy_tbps * 1e9);
      std::printf("%-30s %10.4f %10.4f %8.2f\n", c.name.c_str(), ms, floor, ms / floor);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "halo_bench_ops: %s\n", e.what());
    return 2;
  }
}
