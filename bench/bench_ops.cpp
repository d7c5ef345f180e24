// halo_bench_ops: the time of bandwidth-bound functions on a device against the bytes they have to move.
//
// halo_bench_ops [cuda|cpu] [COPY_TBPS] [OUT.json] [NAME]: one line an op, forward and backward, float32 and bfloat16:
// milliseconds (median), the floor (bytes divided by the copy bandwidth, read plus write) and their ratio. On a GPU a
// forward call is recorded once and replayed, so that the host's time does not count. Before that each body runs twice
// in poisoned memory: a result that is not finite, or not the same bits twice, is reported and fails the program. NAME:
// only ops that contain it.
#include <halo/cuda/graph.h>
#include <halo/halo.h>
#include <halo/ops/optim_step.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "wall_time.h"

namespace halo::bench {
namespace {

using Body = std::function<Tensor()>;

/// After work at the power limit a GPU's clock is low for a tenth of a second, which is not the next op's doing.
constexpr auto kRest = std::chrono::milliseconds(100);

/// As median_ms of wall_time.h, on a GPU after a rest. A backward pass runs on the stream of its forward pass, which a
/// graph does not see: it is called, not replayed.
double time_of(Device device, bool record, const Body& body) {
  constexpr int kCalls = 20, kWarmup = 3;
  if (device.is_cuda()) {
    synchronize(device);
    std::this_thread::sleep_for(kRest);
  }
  if (!record || !device.is_cuda()) return median_ms(device, kCalls, kWarmup, [&] { body(); });
  body();
  const auto graph = cuda::Graph::capture(device, [&] { body(); });
  return median_ms(device, kCalls, kWarmup, [&] { graph.replay(); });
}

struct Case {
  std::string name;
  Shape size;
  DType dtype;
  double bytes;  ///< that the function has to read and write
  /// What is timed, made when its turn comes: tensors live no longer than that.
  std::function<Body()> prepare;
  bool is_backward() const { return name.ends_with("backward"); }
  bool is_random() const { return name == "randn" || name == "rand" || name == "dropout"; }
};

/// Whether every element of the result was written with a finite number, and a second run gives the same bits.
bool holds(const Case& c, const Body& body) {
  const PoisonGuard poison;
  const Tensor first = body();
  if (!first.defined()) return true;
  const Tensor second = c.is_random() ? first : body(), infinity = full({}, INFINITY, first.options());
  const Tensor good = logical_and(eq(first.detach(), second.detach()), lt(abs(first.detach()), infinity));
  return all(good).item() != 0;
}

using Function = std::function<Tensor(const Tensor&)>;

/// The gradient function of `f` at x, as a body of its own: forward is done once.
Body backward_of(const Tensor& x, const Function& f) {
  const Tensor leaf = x.detach().clone().requires_grad_();
  const Tensor y = f(leaf), g = ones_like(y);
  return [=] { return grad({y}, {leaf}, {g}, {.retain_graph = true})[0]; };
}

/// The list of one device and dtype.
class List {
 public:
  List(Device device, DType dtype) : options_{dtype, device} {}

  /// `passes`: tensors of x's size read or written.
  void forward(const std::string& name, const Shape& size, double passes, const Function& f) {
    add(name, size, passes, [f](const Tensor& x) { return Body([=] { return f(x); }); });
  }
  void backward(const std::string& name, const Shape& size, double passes, const Function& f) {
    add(name + " backward", size, passes, [f](const Tensor& x) { return backward_of(x, f); });
  }
  void both(const std::string& name, const Shape& size, double forward_passes, double backward_passes,
            const Function& f) {
    forward(name, size, forward_passes, f);
    backward(name, size, backward_passes, f);
  }
  void add(const std::string& name, const Shape& size, double passes, const std::function<Body(const Tensor&)>& body) {
    const double bytes = passes * static_cast<double>(size.numel()) * static_cast<double>(size_of(options_.dtype));
    cases_.push_back({name, size, options_.dtype, bytes, [=, options = options_] {
                        return body(randn(size, {.device = options.device}).to(options.dtype));
                      }});
  }
  Tensor full(int64_t size) const { return ones({size}, options_); }
  const std::vector<Case>& cases() const { return cases_; }

 private:
  TensorOptions options_;
  std::vector<Case> cases_;
};

/// Ops on images, such as convolutions leave them.
void add_images(List& list, const std::string& suffix, const Shape& images, const TensorOptions& options) {
  const double element = static_cast<double>(size_of(options.dtype));
  const Tensor channel = list.full(96), mean = zeros({96}, options), variance = ones({96}, options);
  list.forward("permute NCHW to NHWC" + suffix, images, 2, [](const Tensor& x) {
    return x.permute({0, 2, 3, 1}).contiguous();
  });
  list.forward("var of channels" + suffix, images, 1, [](const Tensor& x) { return halo::var(x, {0, 2, 3}); });
  list.both("group_norm" + suffix, images, 2, 3, [=](const Tensor& x) { return group_norm(x, 8, channel, channel); });
  list.both("batch_norm" + suffix, images, 3, 5,
            [=](const Tensor& x) { return batch_norm(x, mean, variance, channel, channel, {.training = true}); });
  list.both("local_response_norm" + suffix, images, 2, 4, [](const Tensor& x) { return local_response_norm(x, 5); });
  const double pooled = 27.0 * 27 / (55 * 55);
  list.both("max_pool2d 3/2" + suffix, images, 1 + pooled, 1 + pooled * (1 + 1 / element),
            [](const Tensor& x) { return max_pool2d(x, 3, {.stride = 2}); });
  list.both("avg_pool2d 3/2" + suffix, images, 1 + pooled, 1 + pooled,
            [](const Tensor& x) { return avg_pool2d(x, 3, {.stride = 2}); });
  list.both("pad" + suffix, images, 1 + 57.0 * 57 / (55 * 55), 1 + 1, [](const Tensor& x) {
    return pad(x, {1, 1, 1, 1});
  });
}

std::vector<Case> cases(Device device, DType dtype) {
  List list(device, dtype);
  const TensorOptions options{dtype, device};
  const int64_t twice = dtype == float32 ? 1 : 2;  // as many bytes in either type
  const Shape flat{twice * (64 << 20)}, rows{twice * 65536, 1024};
  const Shape wide{twice * 8192, 8192}, narrow{twice * 262144, 256}, signals{twice * 16, 1024, 4096};
  const Tensor taps = randn({1024, 4}, {.device = device}).to(dtype);
  const double element = static_cast<double>(size_of(dtype));
  const Tensor row = list.full(1024), wide_row = list.full(8192);
  const Tensor short_row = list.full(256);
  const Tensor labels = randint(0, 1024, {rows[0]}).to(device), tokens = randint(0, 16, {narrow[0]}).to(device);

  list.forward("copy", flat, 2, [](const Tensor& x) { return x.clone(); });
  list.forward("fill", flat, 1, [](const Tensor& x) { return zeros_like(x); });
  list.forward("cast to the other of float32 and bfloat16", flat, 1 + (dtype == float32 ? 0.5 : 2.0),
               [=](const Tensor& x) { return x.to(dtype == float32 ? bfloat16 : float32); });
  list.both("relu", flat, 2, 3, [](const Tensor& x) { return relu(x); });
  list.both("gelu", flat, 2, 3, [](const Tensor& x) { return gelu(x); });
  list.both("silu", flat, 2, 3, [](const Tensor& x) { return silu(x); });
  list.add("add", flat, 3, [](const Tensor& x) {
    const Tensor other = x.clone();
    return [=] { return x + other; };
  });
  list.forward("add a row", rows, 2, [=](const Tensor& x) { return x + row; });
  list.forward("transpose", rows, 2, [](const Tensor& x) { return x.transpose(0, 1).contiguous(); });
  list.forward("copy of every second row", rows, 1,
               [](const Tensor& x) { return x.slice(0, 0, x.size(0), 2).contiguous(); });
  list.forward("rand", flat, 1, [=](const Tensor& x) { return rand(x.shape(), x.options()); });
  list.forward("randn", flat, 1, [=](const Tensor& x) { return randn(x.shape(), x.options()); });
  list.both("dropout", flat, 2, 2, [](const Tensor& x) { return dropout(x, 0.5); });
  list.forward("sum", flat, 1, [](const Tensor& x) { return sum(x); });
  list.forward("sum of rows", rows, 1, [](const Tensor& x) { return sum(x, {1}); });
  list.forward("sum of columns", rows, 1, [](const Tensor& x) { return sum(x, {0}); });
  list.forward("max of rows", rows, 1, [](const Tensor& x) { return amax(x, {1}); });
  list.both("softmax", rows, 2, 3, [](const Tensor& x) { return softmax(x, 1); });
  list.both("softmax of long rows", wide, 2, 3, [](const Tensor& x) { return softmax(x, 1); });
  list.both("cross_entropy", rows, 1, 2, [=](const Tensor& x) { return cross_entropy(x, labels); });
  list.both("layer_norm", rows, 2, 3, [=](const Tensor& x) { return layer_norm(x, {1024}, row, row); });
  list.both("layer_norm of long rows", wide, 2, 3,
            [=](const Tensor& x) { return layer_norm(x, {8192}, wide_row, wide_row); });
  list.both("layer_norm of short rows", narrow, 2, 3,
            [=](const Tensor& x) { return layer_norm(x, {256}, short_row, short_row); });
  // At 149 MB what a launch costs is a tenth of such ops, so that they stand there twice.
  for (const auto& [suffix, count] : {std::pair{"", 128}, std::pair{", 595 MB", 512}}) {
    add_images(list, suffix, {twice * count, 96, 55, 55}, options);
  }
  list.forward("cumsum", rows, 2, [](const Tensor& x) { return cumsum(x, 1); });
  list.forward("sort", rows, 2 + 8 / element, [](const Tensor& x) { return sort(x, 1).values; });
  list.forward("causal_conv1d", signals, 2, [=](const Tensor& x) { return causal_conv1d(x, taps); });
  list.backward("causal_conv1d", signals, 3, [=](const Tensor& x) { return causal_conv1d(x, taps); });
  list.add("residual_norm", rows, 4, [=](const Tensor& x) {
    const Tensor residual = x.clone();
    return [=] { return residual_norm(x, row, residual, row, row).normed; };
  });
  list.add("residual_norm backward", rows, 4, [=](const Tensor& x) {
    const Tensor leaf = x.detach().requires_grad_();
    const auto y = residual_norm(leaf, row, x.detach(), row, row);
    const Tensor g = ones_like(y.sum);
    return [=] { return grad({y.sum, y.normed}, {leaf}, {g, g}, {.retain_graph = true})[0]; };
  });
  list.add("embedding", narrow, 1, [=](const Tensor& x) {
    const Tensor table = x.slice(0, 0, 16).contiguous();
    return [=] { return embedding(tokens, table); };
  });
  list.add("embedding backward", narrow, 1, [=](const Tensor&) {
    return backward_of(randn({16, 256}, {.device = device}).to(dtype),
                       [=](const Tensor& table) { return embedding(tokens, table); });
  });
  if (dtype == float32) {
    list.add("adamw_step", {16 << 20}, 7, [](const Tensor& x) {
      const AdamTensors tensors{x, x.clone(), zeros_like(x), zeros_like(x)};
      return [=] {
        ops::adam_step({.weight_decay = 0.01, .decoupled = true}, {tensors});
        return Tensor();
      };
    });
    list.add("sgd_step with momentum", {16 << 20}, 5, [](const Tensor& x) {
      const SgdTensors tensors{x, x.clone(), zeros_like(x)};
      return [=] {
        ops::sgd_step({.momentum = 0.9}, {tensors});
        return Tensor();
      };
    });
  }
  return list.cases();
}

struct Row {
  const Case* of;
  double ms, floor_ms;
};

void write_json(const char* path, const std::vector<Row>& rows) {
  std::FILE* const file = std::fopen(path, "w");
  if (file == nullptr) fail("halo_bench_ops: cannot write ", path);
  std::fprintf(file,
               "{\n \"about\": \"halo_bench_ops: medians of graph replays; floor: bytes at the copy bandwidth\",\n");
  std::fprintf(file, " \"rows\": [\n");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::string size;
    for (int64_t extent : rows[i].of->size) size += (size.empty() ? "" : ", ") + std::to_string(extent);
    std::fprintf(file, "  {\"op\": \"%s\", \"size\": [%s], \"dtype\": \"%s\", \"ms\": %.4f, \"floor_ms\": %.4f}%s\n",
                 rows[i].of->name.c_str(), size.c_str(), name(rows[i].of->dtype), rows[i].ms, rows[i].floor_ms,
                 i + 1 < rows.size() ? "," : "");
  }
  std::fprintf(file, " ]\n}\n");
  std::fclose(file);
}

}  // namespace
}  // namespace halo::bench

int main(int argc, char** argv) {
  using namespace halo;
  const Device device = argc > 1 ? Device::parse(argv[1]) : Device::best();
  const double copy_tbps = argc > 2 ? std::atof(argv[2]) : 4.26;
  const std::string only = argc > 4 ? argv[4] : "";
  std::vector<bench::Case> cases = bench::cases(device, float32);
  for (const bench::Case& c : bench::cases(device, bfloat16)) cases.push_back(c);
  std::vector<bench::Row> rows;
  int wrong = 0;
  std::printf("%-42s %-9s %10s %10s %8s\n", "op", "dtype", "ms", "floor ms", "ratio");
  for (const bench::Case& c : cases) {
    if (c.name.find(only) == std::string::npos) continue;
    try {
      const bench::Body body = c.prepare();
      const bool holds = bench::holds(c, body);
      wrong += !holds;
      const double ms = bench::time_of(device, !c.is_backward(), body), floor = c.bytes / (copy_tbps * 1e9);
      std::printf("%-42s %-9s %10.4f %10.4f %8.2f%s\n", c.name.c_str(), name(c.dtype), ms, floor, ms / floor,
                  holds ? "" : " WRONG");
      std::fflush(stdout);
      rows.push_back({&c, ms, floor});
    } catch (const std::exception& error) {
      ++wrong;
      std::printf("%-42s %-9s %s\n", c.name.c_str(), name(c.dtype), error.what());
    }
  }
  if (argc > 3) bench::write_json(argv[3], rows);
  return wrong == 0 ? 0 : 1;
}
