// halo_bench_models: training steps and inference of whole models, loss and optimiser included.
//
// halo_bench_models [--only NAME]... [--json OUT] [--device D] [--steps N]: the models of the PyTorch figures in
// bench/results/h200_models.json, under their names. Milliseconds are medians; peaks are MiB of live tensors and
// workspaces; one line of JSON a case. With --steps there is nothing but that many training steps, for a profiler.
#include <halo/cuda/graph.h>
#include <halo/halo.h>
#include <halo/nn/models/alexnet.h>
#include <halo/nn/models/hyena_decoder.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace halo::bench {
namespace {

using Figures = std::vector<std::pair<std::string, double>>;

/// Where to run, and how many training steps (0: as many as a median needs, and inference too).
struct Setting {
  Device device;
  int64_t steps = 0;
};

struct Case {
  std::string name;
  Precision precision;
  std::function<Figures()> run;
};

/// Milliseconds of a call, the mean over several.
double mean_ms(Device device, int calls, const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  synchronize(device);
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) body();
  synchronize(device);
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count() / calls;
}

/// Milliseconds of a call: the median over groups of calls, each group long enough to hide the wait at its end.
double median_ms(Device device, double budget_ms, const std::function<void()>& body) {
  const auto time = [&](int calls) { return mean_ms(device, calls, body); };
  time(2);
  const double first = time(1);
  const int calls = std::clamp(static_cast<int>(20 / first), 1, 20);
  const int groups = std::clamp(static_cast<int>(budget_ms / (first * calls)), 5, 50);
  std::vector<double> times;
  for (int i = 0; i < groups; ++i) times.push_back(time(calls));
  std::ranges::sort(times);
  return times[times.size() / 2];
}

/// Times a training step and inference, and takes the peak of both. Releases what an earlier model left in the cache.
class Meter {
 public:
  explicit Meter(const Setting& setting) : setting_(setting) {
    allocator(setting.device).release_cache();
    allocator(setting.device).reset_peak();
  }
  void training(const std::string& name, const std::function<void()>& step) {
    if (setting_.steps == 0) figures_.emplace_back(name, median_ms(setting_.device, 600, step));
    for (int64_t i = 0; i < setting_.steps; ++i) step();
  }
  void inference(const std::string& name, const std::function<void()>& body) {
    const NoGradGuard no_grad;
    if (setting_.steps == 0) figures_.emplace_back(name, median_ms(setting_.device, 150, body));
  }
  /// The mean over `count` calls after a few; what a call waits for now and then is in it.
  void tokens(const std::string& name, const std::function<void()>& step, int64_t count) {
    for (int i = 0; i < 4; ++i) step();
    figures_.emplace_back(name, mean_ms(setting_.device, static_cast<int>(count), step));
  }
  const Figures& figures() const { return figures_; }
  Figures with_peak(const nn::Module& model) {
    const auto peak = allocator(setting_.device).stats().peak_bytes;
    figures_.emplace_back("peak_MB", static_cast<double>(peak >> 20));
    figures_.emplace_back("parameters", static_cast<double>(model.num_parameters()));
    return figures_;
  }

 private:
  Setting setting_;
  Figures figures_;
};

Figures alexnet(const Setting& setting) {
  const Device device = setting.device;
  Meter meter(setting);
  models::AlexNet model;
  model.to(device);
  const Tensor x = randn({256, 3, 224, 224}, {.device = device});
  const Tensor target = randint(0, 1000, {256}).to(device);
  optim::SGD optimizer(model.parameters(), {.lr = 0.01, .momentum = 0.9});
  meter.training("train256", [&] {
    const Tensor loss = cross_entropy(model(x), target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  });
  model.eval();
  meter.inference("infer256", [&] { model(x); });
  const Tensor one = x.slice(0, 0, 1).contiguous();
  meter.inference("infer1", [&] { model(one); });
  return meter.with_peak(model);
}

/// Milliseconds of single layers on one image, replayed as graphs: inference as one would serve it.
Figures layers_at_batch_1(const Setting& setting) {
  constexpr int kCalls = 20;  // a graph
  const Device device = setting.device;
  const NoGradGuard no_grad;
  Figures figures;
  for (const auto& [in, out, size, kernel] : {std::array<int64_t, 4>{64, 64, 56, 3},
                                              {128, 128, 28, 3},
                                              {256, 256, 14, 3},
                                              {512, 512, 7, 3},
                                              {1024, 256, 14, 1}}) {
    nn::Conv2d layer(in, out, kernel, {.padding = kernel / 2, .activation = {ActivationKind::Relu}});
    layer.to(device);
    const Tensor x = randn({1, in, size, size}, {.device = device});
    std::function<void()> body = [&] {
      for (int i = 0; i < kCalls; ++i) layer(x);
    };
    body();
    if (device.is_cuda()) body = [graph = cuda::Graph::capture(device, body)] { graph.replay(); };
    figures.emplace_back(concat(in, "_", out, "_", size, "_k", kernel), median_ms(device, 100, body) / kCalls);
  }
  return figures;
}

Figures hyena(const Setting& setting, int64_t d_model, int64_t layers, int64_t length, int64_t batch) {
  const Device device = setting.device;
  Meter meter(setting);
  models::HyenaLM model({.mixer = {.d_model = d_model, .l_max = length, .w = 1, .shift = 0},
                         .n_layer = layers,
                         .vocab_size = 16,
                         .embed_dropout = 0,
                         .tied_head = false,
                         .activation = GeluForm::Exact});
  model.to(device);
  const Tensor ids = randint(0, 16, {batch, length}).to(device);
  optim::AdamW optimizer(model.parameters(), {.lr = 6e-4});
  meter.training("train", [&] {
    const Tensor loss = cross_entropy(model(ids).flatten(0, 1), ids.flatten());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  });
  meter.inference("infer", [&] { model(ids); });
  return meter.with_peak(model);
}

/// The long convolution alone, the filter's transform in each call (`fwd`, `fwdbwd`) or kept as in inference.
Figures long_convolution(const Setting& setting, int64_t batch, int64_t channels, int64_t length) {
  const Device device = setting.device;
  Meter meter(setting);
  const Tensor x = randn({batch, channels, length}, {.device = device}).requires_grad_();
  const Tensor w = randn({channels, length}, {.device = device}).requires_grad_();
  const Tensor g = randn({batch, channels, length}, {.device = device}), values = w.detach();
  meter.inference("fwd", [&] { long_conv(x, values); });
  meter.inference("fwd_kept", [&] { long_conv(x, w); });
  meter.training("fwdbwd", [&] { grad({long_conv(x, w)}, {x, w}, {g}); });
  return meter.figures();
}

/// Milliseconds a token: the likeliest next base after a random prefix, chosen on the device.
Figures decode(const Setting& setting, int64_t prefix) {
  constexpr int64_t kTokens = 1024;
  const Device device = setting.device;
  Meter meter(setting);
  const NoGradGuard no_grad;
  models::HyenaLM model({.mixer = {.d_model = 256, .l_max = prefix + kTokens}, .n_layer = 8, .vocab_size = 12});
  model.to(device);
  model.eval();
  models::HyenaDecoder decoder(model, kTokens);
  if (device.is_cuda()) {
    decoder.record_with([device](const std::function<void()>& step) -> std::function<void()> {
      return [graph = cuda::Graph::capture(device, step)] { graph.replay(); };
    });
  }
  Tensor logits = decoder.prefill(randint(7, 11, {1, prefix}).to(device));
  meter.tokens(
      "per_token", [&] { logits = decoder.step(argmax(logits, 1)); }, kTokens - 8);
  return meter.with_peak(model);
}

std::vector<Case> cases(const Setting& setting) {
  std::vector<Case> list;
  for (const Precision precision : {Precision::Float32, Precision::TF32}) {
    const std::string suffix = precision == Precision::Float32 ? "_fp32" : "_tf32";
    list.push_back({"alexnet" + suffix + "_nchw", precision, [=] { return alexnet(setting); }});
    list.push_back({"conv_b1" + suffix, precision, [=] { return layers_at_batch_1(setting); }});
    const auto add = [&](int64_t d_model, int64_t layers, int64_t length, int64_t batch) {
      const std::string name = concat("hyena_d", d_model, "_n", layers, "_L", length, "_B", batch, suffix);
      list.push_back({name, precision, [=] { return hyena(setting, d_model, layers, length, batch); }});
    };
    add(128, 2, 1024, 256);
    add(256, 8, 32768, 4);
    add(256, 8, 131072, 1);
  }
  for (const auto& [batch, channels, length] : {std::array<int64_t, 3>{16, 768, 1024},
                                                {16, 768, 4096},
                                                {16, 768, 8192},
                                                {4, 768, 32768},
                                                {1, 768, 131072},
                                                {1, 256, 1 << 20}}) {
    list.push_back({concat("long_conv_", batch, "_", channels, "_", length), Precision::Float32,
                    [=] { return long_convolution(setting, batch, channels, length); }});
  }
  for (const int64_t prefix : {int64_t{32768}, int64_t{524288}}) {
    list.push_back(
        {concat("hyena_decode_d256_n8_P", prefix), Precision::Float32, [=] { return decode(setting, prefix); }});
  }
  return list;
}

std::string json_of(const Figures& figures) {
  std::ostringstream text;
  text.precision(12);
  for (const auto& [name, value] : figures) text << (text.tellp() == 0 ? "" : ", ") << '"' << name << "\": " << value;
  return "{" + text.str() + "}";
}

}  // namespace
}  // namespace halo::bench

int main(int argc, char** argv) {
  using namespace halo;
  CLI::App app{"Times training steps and inference of whole models"};
  std::vector<std::string> only;
  std::string json, device_name;
  int64_t steps = 0;
  app.add_option("--only", only, "parts of names of cases");
  app.add_option("--json", json, "file for all results");
  app.add_option("--device", device_name, "cpu, cuda or cuda:N; default: a GPU where there is one");
  app.add_option("--steps", steps, "this many training steps and nothing else")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    std::string all;
    const Device device = device_name.empty() ? Device::best() : Device::parse(device_name);
    for (const auto& c : bench::cases({device, steps})) {
      const auto matches = [&](const std::string& part) { return c.name.find(part) != std::string::npos; };
      if (!only.empty() && std::ranges::none_of(only, matches)) continue;
      const PrecisionGuard precision(c.precision);
      const std::string line = concat('"', c.name, "\": ", bench::json_of(c.run()));
      std::printf("%s\n", line.c_str());
      std::fflush(stdout);
      all += (all.empty() ? "{\n" : ",\n") + line;
    }
    if (!json.empty()) std::ofstream(json) << all << "\n}\n";
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "halo_bench_models: %s\n", e.what());
    return 2;
  }
}
