// halo_bench_long_conv: checks the long convolution against float64 direct sums and times it.
//
//   halo_bench_long_conv [--check] [--time] [--only LENGTH] [--json OUT]     (both when neither is asked for)
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>

#include "long_conv_case.cuh"

namespace halo::bench {
namespace {

double bound_for(DType dtype, int result) {
  switch (dtype) {
    case DType::Float64: return 1e-13;
    case DType::BFloat16: return 4e-3;
    case DType::Float16: return 5e-4;
    default: return result == kOutput ? 1e-6 : 3e-6;
  }
}

bool check_case(const Case& c, int samples) {
  Run run(c);
  run.make_workspace();
  run.poison_results();
  run.forward();
  run.backward();
  check(cudaDeviceSynchronize(), "long_conv");
  bool good = true;
  std::string line;
  for (int i = 0; i < kResults; ++i) {
    const double error = run.error(i, samples);
    good = good && error < bound_for(c.dtype, i);
    char text[64];
    std::snprintf(text, sizeof text, " %s %.1e", kResultNames[i], error);
    line += text;
  }
  const auto first = run.results();
  run.make_workspace();
  run.poison_results();
  run.forward();
  run.backward();
  check(cudaDeviceSynchronize(), "long_conv");
  const bool same = first == run.results();
  std::printf("%s %s %s%s%s%s\n", good && same ? "ok  " : "FAIL", c.problem.str().c_str(), name(c.dtype),
              c.gates ? " gates" : "", line.c_str(), same ? "" : " NOT REPEATABLE");
  return good && same;
}

__global__ void scale_kernel(float* data, int64_t count, float factor) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    data[i] *= factor;
  }
}

/// Row (0, 0) times 1e6, then NaN: every other row of the output and of the input's gradient keeps its bits.
bool check_rows(int64_t length) {
  const Case c{LongConvProblem::make("bench", {3, 2, length}, {2, length}, true), float32, false};
  Run run(c);
  run.make_workspace();
  run.forward();
  run.backward();
  const auto before = run.results();
  bool good = true;
  for (float factor : {1e6f, NAN}) {
    cuda::launch("scale", scale_kernel, dim3(64), dim3(kThreads), 0, nullptr, run.x(), length, factor);
    run.forward();
    run.backward();
    const auto after = run.results();
    const auto skip = static_cast<std::size_t>(length) * 4;
    good = good &&
           std::memcmp(before[kOutput].data() + skip, after[kOutput].data() + skip, before[kOutput].size() - skip) == 0;
    good = good && std::memcmp(before[kOutput].data(), after[kOutput].data(), skip) != 0;
    good = good && before[kGradX] == after[kGradX];
  }
  std::printf("%s rows independent, length %lld\n", good ? "ok  " : "FAIL", static_cast<long long>(length));
  return good;
}

int check_all() {
  int failures = 0;
  const auto expect = [&](bool ok) { failures += ok ? 0 : 1; };
  for (int64_t length : {1, 2, 3, 7, 8, 9, 255, 1000}) {
    for (bool causal : {true, false}) {
      for (int64_t kernel : {int64_t{1}, length, 2 * length + 1}) {
        expect(
            check_case({LongConvProblem::make("bench", {3, 5, length}, {5, kernel}, causal), float32, causal}, 20000));
      }
    }
  }
  for (int64_t length : {1025, 4095, 8191, 8192, 8193, 8761, 14113, 40000, 131071}) {
    const LongConvProblem p = LongConvProblem::make("bench", {3, 2, length}, {2, length + 5}, length % 2 == 0);
    expect(check_case({p, float32, length % 3 != 0}, 400));
  }
  for (DType dtype : {float64, bfloat16, float16}) {
    for (int64_t length : {200, 1000, 8192, 14113}) {
      expect(
          check_case({LongConvProblem::make("bench", {2, 3, length}, {3, length / 2 + 1}, false), dtype, true}, 400));
    }
  }
  // Many tasks a block, and a batch in pieces.
  expect(check_case({LongConvProblem::make("bench", {5, 700, 2000}, {700, 2000}, true), float32, false}, 400));
  expect(check_case({LongConvProblem::make("bench", {64, 3, 4096}, {3, 4096}, true), float32, true}, 400));
  expect(check_case({LongConvProblem::make("bench", {1, 2, 1 << 20}, {2, 1 << 20}, true), float32, false}, 64));
  expect(check_case({LongConvProblem::make("bench", {1, 1, (1 << 21) - 1}, {1, 1000}, false), float32, true}, 64));
  for (int64_t length : {255, 1024, 8192, 32768}) expect(check_rows(length));
  std::printf("%d failures\n", failures);
  return failures;
}

/// Median milliseconds of `work`, by events.
double time_ms(const std::function<void()>& work) {
  cudaEvent_t start = nullptr, stop = nullptr;
  check(cudaEventCreate(&start), "event");
  check(cudaEventCreate(&stop), "event");
  for (int i = 0; i < 2; ++i) work();
  std::vector<float> times(20);
  for (float& t : times) {
    check(cudaEventRecord(start), "event");
    work();
    check(cudaEventRecord(stop), "event");
    check(cudaEventSynchronize(stop), "event");
    check(cudaEventElapsedTime(&t, start, stop), "event");
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]);
}

void time_all(int64_t only, const std::string& json) {
  std::string rows;
  for (auto [batch, channels, length] : std::vector<std::array<int64_t, 3>>{
           {16, 768, 1024}, {16, 768, 4096}, {16, 768, 8192}, {4, 768, 32768}, {1, 768, 131072}, {1, 256, 1 << 20}}) {
    if (only != 0 && only != length) continue;
    Run run({LongConvProblem::make("bench", {batch, channels, length}, {channels, length}, true), float32, false});
    run.plain();
    run.make_workspace();
    const double forward = time_ms([&] { run.forward(); });
    const double backward = time_ms([&] { run.backward(); });
    const double both = time_ms([&] {
      run.forward();
      run.backward();
    });
    const double floor = run.operands.problem.bytes(4) / 4.26e9;
    char text[256];
    std::snprintf(text, sizeof text,
                  "\"fftconv_%lld_%lld_%lld\": {\"fwd\": %.4f, \"bwd\": %.4f, \"fwdbwd\": %.4f, \"floor_fwd\": %.4f, "
                  "\"workspace_MiB\": %.0f}",
                  static_cast<long long>(batch), static_cast<long long>(channels), static_cast<long long>(length),
                  forward, backward, both, floor, static_cast<double>(run.workspace_bytes()) / 1048576.0);
    std::printf("%s\n", text);
    std::fflush(stdout);
    rows += (rows.empty() ? "{" : ",\n ") + std::string(text);
  }
  if (!json.empty()) std::ofstream(json) << rows << "}\n";
}

int main_checked(int argc, char** argv) {
  bool check_wanted = false, time_wanted = false;
  std::string json;
  int64_t only = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--check") {
      check_wanted = true;
    } else if (argument == "--time") {
      time_wanted = true;
    } else if (argument == "--only" && i + 1 < argc) {
      only = std::stoll(argv[++i]);
    } else if (argument == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else {
      fail("halo_bench_long_conv: expects --check, --time, --only LENGTH or --json OUT, got ", argument);
    }
  }
  const bool all = !check_wanted && !time_wanted;
  const int failures = all || check_wanted ? check_all() : 0;
  if (all || time_wanted) time_all(only, json);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace halo::bench

int main(int argc, char** argv) {
  try {
    return halo::bench::main_checked(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
