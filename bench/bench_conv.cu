// halo_bench_conv: times passes of convolution problems, checks every run against float64, and writes a table.
#include <halo/core/error.h>
#include <halo/cuda/conv/dispatch.h>
#include <halo/cuda/conv/measure.h>
#include <halo/cuda/launch.h>
#include <halo/cuda/tuning.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "conv_case.h"
#include "conv_data.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#ifndef HALO_COMMIT
#define HALO_COMMIT "unknown"
#endif

namespace halo::bench {
namespace {

using cuda::check;
using cuda::conv::Algorithm;
using cuda::conv::ConvConfig;

struct Options {
  std::string problems, json, force, tune, choices;
  std::vector<std::string> only, passes{"forward"}, precisions{"fp32"}, forms{"listed"};
  int trials = 1, samples = 512;
  bool jitter = false, explain = false, warm = false, prepared = false;
};

struct Ceiling {
  double tflops;
  double copy_tbps = 4.26;
};

/// Sustained rates measured on an H200: the floor of a problem is the larger of arithmetic and traffic.
Ceiling ceiling_of(const std::string& precision) {
  if (precision == "fp32") return {132};
  return {precision == "tf32" ? 368.0 : 805.0};
}

ConvPass pass_named(const std::string& text) {
  if (text == "forward") return ConvPass::Forward;
  return text == "backward_input" ? ConvPass::BackwardInput : ConvPass::BackwardWeight;
}

DType dtype_of_precision(const std::string& text) {
  return text == "bf16" ? DType::BFloat16 : text == "f16" ? DType::Float16 : DType::Float32;
}

/// A case in one form, one of its passes and the precision it runs at.
struct Measured {
  ConvCase c;
  std::string form, pass, precision;

  ConvConfig config() const {
    ConvConfig config;
    config.pass = c.pass_of_problem(pass_named(pass));
    config.dtype = dtype_of_precision(precision);
    config.precision = precision == "tf32" ? Precision::TF32 : Precision::Float32;
    config.alignment = c.offset == 0 ? 16 : static_cast<int>(size_of(config.dtype));
    return config;
  }
};

/// Memory of an operand that begins `offset` elements behind an aligned address.
class Operand {
 public:
  Operand(int64_t count, int64_t offset, DType dtype)
      : count_(count),
        skipped_(static_cast<std::size_t>(offset) * size_of(dtype)),
        buffer_(bytes_of(count, dtype) + skipped_) {}
  void* data() const { return static_cast<char*>(buffer_.data()) + skipped_; }
  std::size_t bytes() const { return buffer_.bytes() - skipped_; }
  int64_t count() const { return count_; }

 private:
  static std::size_t bytes_of(int64_t count, DType dtype) { return static_cast<std::size_t>(count) * size_of(dtype); }
  int64_t count_;
  std::size_t skipped_;
  DeviceBuffer buffer_;
};

/// One convolution ready to run: operands, workspace and the chosen kernel.
struct Runner {
  ConvProblem problem;
  ConvConfig config;
  const Algorithm* algorithm;
  Operand x, w, y;
  DeviceBuffer workspace, prepared;
  cudaStream_t stream = nullptr;

  Runner(const ConvProblem& p, const ConvConfig& c, const Algorithm* a, int64_t offset, bool prepare_once)
      : problem(p),
        config(c),
        algorithm(a),
        x(p.x_numel(), offset, c.dtype),
        w(p.w_numel(), offset, c.dtype),
        y(p.y_numel(), offset, c.dtype),
        workspace(a->workspace_bytes(p, c)),
        prepared(prepare_once && a->prepare != nullptr ? a->prepared_bytes(p, c) : 0) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner() { cudaStreamDestroy(stream); }

  /// What inference does once for each version of the weights.
  void prepare() const {
    if (prepared.bytes() != 0) algorithm->prepare(problem, config, w.data(), prepared.data(), stream);
  }
  void run() const {
    const void* kept = prepared.bytes() != 0 ? prepared.data() : nullptr;
    algorithm->run(problem, config, {x.data(), w.data(), y.data(), nullptr, workspace.data(), kept}, stream);
  }
  const Operand& result() const {
    return config.pass == ConvPass::Forward ? y : config.pass == ConvPass::BackwardInput ? x : w;
  }
  std::size_t bytes() const { return x.bytes() + w.bytes() + y.bytes() + workspace.bytes(); }
};

/// An operand as float32: its own memory, or for half types a copy.
class Floats {
 public:
  Floats(const Operand& operand, DType dtype)
      : operand_(operand),
        dtype_(dtype),
        copy_(is_half(dtype) ? static_cast<std::size_t>(operand.count()) * sizeof(float) : 0) {}
  float* get() const { return is_half(dtype_) ? copy_.floats() : static_cast<float*>(operand_.data()); }

  void randomise(uint64_t seed) const {
    if (count() == 0) return;
    fill_random(get(), count(), seed);
    if (is_half(dtype_)) narrow(get(), operand_.data(), dtype_, count());
  }
  /// What the operand holds now.
  void read() const {
    if (is_half(dtype_)) widen(operand_.data(), dtype_, get(), count());
  }
  int64_t count() const { return operand_.count(); }
  int64_t unwritten() const { return count_poison(operand_.data(), dtype_, count()); }

 private:
  const Operand& operand_;
  DType dtype_;
  DeviceBuffer copy_;
};

/// Fresh random operands, poisoned result and workspace, one run; every element written; the sampled error.
SampleError check_once(const Runner& r, uint64_t seed, int samples) {
  const Floats x(r.x, r.config.dtype), w(r.w, r.config.dtype), y(r.y, r.config.dtype);
  const Floats& result = &r.result() == &r.y ? y : &r.result() == &r.x ? x : w;
  for (const Floats* operand : {&x, &w, &y}) {
    if (operand != &result) operand->randomise(seed++);
  }
  poison(r.result().data(), r.result().bytes());
  poison(r.workspace.data(), r.workspace.bytes());
  check(cudaDeviceSynchronize(), "fill");
  r.prepare();
  r.run();
  check(cudaDeviceSynchronize(), r.algorithm->name);
  if (const int64_t unwritten = result.unwritten(); unwritten != 0) {
    fail<InternalError>(r.algorithm->name, ": ", unwritten, " of ", result.count(), " elements not written");
  }
  for (const Floats* operand : {&x, &w, &y}) operand->read();
  return sample_error(r.problem, r.config.pass, x.get(), w.get(), y.get(), samples, seed);
}

/// Number of kernels and copies one run enqueues; also the graph that replays it `repeats` times.
cudaGraphExec_t capture(const Runner& r, int repeats, std::size_t& launches) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < repeats; ++i) r.run();
  check(cudaStreamEndCapture(r.stream, &graph), "capture");
  check(cudaGraphGetNodes(graph, nullptr, &launches), "capture");
  launches /= static_cast<std::size_t>(repeats);
  check(cudaGraphInstantiate(&executable, graph, 0), "capture");
  check(cudaGraphDestroy(graph), "capture");
  return executable;
}

/// After this long the clock that work at the power limit has lowered is up again, and the driver has cleared the
/// memory that the problem before gave back: either makes what follows up to a tenth slower.
constexpr auto kRest = std::chrono::milliseconds(100);

/// Median milliseconds a run by graph replay, after a rest. Unless `warm`, what the run reads is flushed from L2 before
/// each.
double median_ms(const Runner& r, bool warm, std::size_t& launches) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  const int repeats = warm ? 20 : 1;
  cudaGraphExec_t graph = capture(r, repeats, launches);
  constexpr std::size_t kFlushBytes = std::size_t{192} << 20;
  const bool flush = !warm && r.bytes() < 4 * kFlushBytes;
  DeviceBuffer scratch(flush ? kFlushBytes : 0);
  check(cudaStreamSynchronize(r.stream), "rest");
  std::this_thread::sleep_for(kRest);
  std::vector<double> times;
  double total = 0;
  for (int i = 0; i < 52 && (i < 7 || total < 60.0); ++i) {
    if (flush) check(cudaMemsetAsync(scratch.data(), i, scratch.bytes(), r.stream), "flush");
    check(cudaEventRecord(begin, r.stream), "event");
    check(cudaGraphLaunch(graph, r.stream), "graph");
    check(cudaEventRecord(end, r.stream), "event");
    check(cudaEventSynchronize(end), r.algorithm->name);
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 2) times.push_back(ms / repeats);
    total += ms;
  }
  cudaGraphExecDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

/// Times every kernel for every case, writes the fastest to a file and uses them from here on.
void tune(const std::vector<Measured>& all, const Options& options) {
  std::vector<cuda::conv::ChoiceKey> keys;
  for (const Measured& m : all) {
    const ConvConfig config = m.config();
    keys.push_back({m.c.problem(), config.pass, config.dtype, config.precision});
  }
  const auto choices = cuda::conv::measure_choices(keys, Device::cuda());
  cuda::conv::write_choices(options.tune, choices, Device::cuda());
  cuda::conv::use_choices(0, choices);
}

nlohmann::json measure(const Measured& m, const Options& options) {
  const ConvProblem problem = m.c.problem();
  const ConvConfig config = m.config();
  const Ceiling ceiling = ceiling_of(m.precision);
  const double bytes = problem.bytes(size_of(config.dtype));
  const double flop_ms = problem.flops() / ceiling.tflops / 1e9, byte_ms = bytes / ceiling.copy_tbps / 1e9;
  const double floor = std::max(flop_ms, byte_ms);
  if (options.explain) {
    std::printf("%s    floor on an H200: %.4g ms (arithmetic %.4g, bytes %.4g)\n",
                cuda::conv::explain(problem, config).c_str(), floor, flop_ms, byte_ms);
  }
  const Algorithm& algorithm =
      options.force.empty() ? cuda::conv::select_algorithm(problem, config) : cuda::conv::find_algorithm(options.force);
  if (!algorithm.supports(problem, config)) fail(algorithm.name, ": does not support ", problem.str());
  const Runner runner(problem, config, &algorithm, m.c.offset, options.prepared);
  SampleError error;
  for (int trial = 0; trial < options.trials; ++trial) {
    const SampleError one = check_once(runner, 1000u * static_cast<unsigned>(trial + 1), options.samples);
    if (!(one.relative <= error.relative)) error = one;
  }
  std::size_t launches = 0;
  const double ms = median_ms(runner, options.warm, launches);
  std::printf(
      "%-20s %-9s %-15s %-5s %9.4f ms  floor %8.4f (%5.1f%%, %s)  %7.1f TFLOP/s %7.0f GB/s  error %.2e (chain %.2e)  "
      "%s\n",
      m.c.id.c_str(), m.form.c_str(), m.pass.c_str(), m.precision.c_str(), ms, floor, 100 * floor / ms,
      flop_ms > byte_ms ? "flop" : "bytes", problem.flops() / ms / 1e9, bytes / ms / 1e6, error.relative,
      error.sequential, algorithm.name);
  std::fflush(stdout);
  return {{"id", m.c.id},
          {"form", m.form},
          {"pass", m.pass},
          {"precision", m.precision},
          {"ms", ms},
          {"floor_ms", floor},
          {"bound", flop_ms > byte_ms ? "flop" : "bytes"},
          {"tflops", problem.flops() / ms / 1e9},
          {"gbps", bytes / ms / 1e6},
          {"score", floor / ms},
          {"peak_bytes", runner.bytes()},
          {"workspace_bytes", runner.workspace.bytes()},
          {"launches", launches},
          {"error", error.relative},
          {"kernel", algorithm.name}};
}

std::string driver_version() {
  int version = 0;
  check(cudaDriverGetVersion(&version), "driver");
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

int run(const Options& options) {
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "device");
  nlohmann::json rows = nlohmann::json::array();
  int failures = 0;
  std::vector<Measured> all;
  for (const ConvCase& c : read_cases(options.problems, options.only)) {
    for (const std::string& precision : options.precisions) {
      for (const std::string& pass : options.passes) {
        for (const std::string& form : options.forms)
          all.push_back({(options.jitter ? c.jittered() : c).in_form(form), form, pass, precision});
      }
    }
  }
  if (!options.tune.empty()) tune(all, options);
  if (!options.choices.empty()) {
    const std::string ignored = cuda::load_convolution_choices(options.choices, Device::cuda());
    if (!ignored.empty()) std::printf("%s\n", ignored.c_str());
  }
  for (const Measured& m : all) {
    try {
      rows.push_back(measure(m, options));
    } catch (const Error& error) {
      std::printf("%-20s %-9s %-15s %-5s FAILED %s\n", m.c.id.c_str(), m.form.c_str(), m.pass.c_str(),
                  m.precision.c_str(), error.what());
      ++failures;
    }
  }
  if (!options.json.empty()) {
    std::ofstream(options.json) << nlohmann::json{{"gpu", device.name},
                                                  {"driver", driver_version()},
                                                  {"commit", HALO_COMMIT},
                                                  {"rows", rows}}
                                       .dump(1)
                                << '\n';
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace halo::bench

int main(int argc, char** argv) {
  halo::bench::Options options;
  CLI::App app("Times convolutions and checks them against float64");
  app.add_option("--problems", options.problems, "problem file")->required();
  app.add_option("--only", options.only, "ids, separated by commas (the part before '_' is enough)")->delimiter(',');
  app.add_option("--pass", options.passes, "passes, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"forward", "backward_input", "backward_weight"}));
  app.add_option("--precision", options.precisions, "precisions, separated by commas")
      ->delimiter(',')
      ->check(CLI::IsMember({"fp32", "tf32", "bf16", "f16"}));
  app.add_option("--form", options.forms,
                 "forms of each problem, separated by commas: as listed, "
                 "widths or all extents odd, operands an element behind an aligned address")
      ->delimiter(',')
      ->check(CLI::IsMember({"listed", "odd_width", "odd", "slice"}));
  app.add_option("--trials", options.trials, "runs on fresh inputs that are checked");
  app.add_option("--samples", options.samples, "elements of the result compared with float64 a trial");
  app.add_flag("--jitter", options.jitter, "move every extent a little");
  app.add_flag("--explain", options.explain, "show how the kernel was chosen");
  app.add_flag("--warm", options.warm, "leave inputs in L2 and replay 20 runs a graph (batch-1 latency)");
  app.add_flag("--prepared", options.prepared, "lay weights out once, before the timed runs, where the kernel can");
  app.add_option("--force", options.force, "use this algorithm");
  app.add_option("--tune", options.tune, "time every kernel first; write the fastest to this file and use them");
  app.add_option("--choices", options.choices, "use the kernels of a file that --tune wrote");
  app.add_option("--json", options.json, "where the table goes");
  CLI11_PARSE(app, argc, argv);
  try {
    return halo::bench::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "halo_bench_conv: %s\n", error.what());
    return 2;
  }
}
