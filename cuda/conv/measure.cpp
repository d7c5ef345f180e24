#include "measure.h"

#include <halo/core/atomic_file.h>
#include <halo/core/cuda_backend.h>
#include <halo/core/generator.h>
#include <halo/cuda/tuning.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <limits>

#include "../launch.h"
#include "../runtime/device.h"
#include "dispatch.h"
#include <link.h>

namespace halo::cuda {
namespace conv {
namespace {

/// The linker's build id of the program or library that holds this code: it changes with any of the code.
std::string build_id() {
  struct Search {
    uintptr_t own;
    std::string id;
  } search{reinterpret_cast<uintptr_t>(&build_id), "unknown"};
  const auto visit = [](dl_phdr_info* module, std::size_t, void* data) {
    auto& wanted = *static_cast<Search*>(data);
    const std::span headers(module->dlpi_phdr, module->dlpi_phnum);
    const bool holds = std::any_of(headers.begin(), headers.end(), [&](const auto& h) {
      return h.p_type == PT_LOAD && wanted.own - (module->dlpi_addr + h.p_vaddr) < h.p_memsz;
    });
    if (!holds) return 0;
    for (const auto& h : headers) {
      if (h.p_type != PT_NOTE) continue;
      const auto padded = [](std::size_t bytes) { return (bytes + 3) / 4 * 4; };
      const auto* note = reinterpret_cast<const unsigned char*>(module->dlpi_addr + h.p_vaddr);
      for (const auto* end = note + h.p_memsz; note + sizeof(ElfW(Nhdr)) <= end;) {
        const auto* head = reinterpret_cast<const ElfW(Nhdr)*>(note);
        const unsigned char* id = note + sizeof *head + padded(head->n_namesz);
        if (head->n_type == NT_GNU_BUILD_ID) {
          wanted.id.clear();
          for (std::size_t i = 0; i < head->n_descsz; ++i) {
            wanted.id += "0123456789abcdef"[id[i] / 16];
            wanted.id += "0123456789abcdef"[id[i] % 16];
          }
          return 1;
        }
        note = id + padded(head->n_descsz);
      }
    }
    return 1;
  };
  dl_iterate_phdr(visit, &search);
  return search.id;
}

/// Two events and what lies between them.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    for (cudaEvent_t& event : events_) check(cudaEventCreate(&event), "tune");
  }
  ~Stopwatch() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// Milliseconds of one of `count` calls of f.
  template <class F>
  double ms(int count, const F& f) const {
    check(cudaEventRecord(events_[0], stream_), "tune");
    for (int i = 0; i < count; ++i) f();
    check(cudaEventRecord(events_[1], stream_), "tune");
    check(cudaEventSynchronize(events_[1]), "tune");
    float total = 0;
    check(cudaEventElapsedTime(&total, events_[0], events_[1]), "tune");
    return total / static_cast<double>(count);
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t events_[2] = {};
};

/// Median of five times, each of enough runs to last a millisecond; one time for a kernel far slower than `best_ms`.
double time_kernel(const Algorithm& algorithm, const ChoiceKey& key, const ConvConfig& config, Operands operands,
                   double best_ms, Device device, cudaStream_t stream) {
  const Storage workspace(algorithm.workspace_bytes(key.problem, config), device);
  operands.workspace = workspace.data();
  const auto run = [&] { algorithm.run(key.problem, config, operands, stream); };
  const Stopwatch watch(stream);
  run();
  const double once = watch.ms(1, run);
  if (once > 3 * best_ms) return once;
  const int count = static_cast<int>(std::clamp(1 / std::max(once, 1e-3), 1.0, 100.0));
  std::array<double, 5> times{};
  for (double& time : times) time = watch.ms(count, run);
  std::nth_element(times.begin(), times.begin() + 2, times.end());
  return times[2];
}

}  // namespace

MeasuredOn measured_here(Device device) {
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "tune");
  return {describe(device.index), concat(driver / 1000, '.', driver % 1000 / 10), build_id()};
}

std::vector<Choice> measure_choices(std::span<const ChoiceKey> keys, Device device) {
  const DeviceScope scope(device);
  std::vector<Choice> choices;
  Generator generator(1);
  for (const ChoiceKey& key : keys) {
    const ConvProblem& p = key.problem;
    if (!(p.flops() > 0)) continue;
    const ConvConfig config{.pass = key.pass, .dtype = key.dtype, .precision = key.precision, .alignment = 16};
    const auto random = [&](int64_t count) { return rand({count}, {.dtype = key.dtype, .device = device}, generator); };
    const Tensor x = random(p.x_numel()), w = random(p.w_numel()), y = random(p.y_numel());
    Choice best{key, {}, std::numeric_limits<double>::infinity()};
    for (const Algorithm* algorithm : algorithms()) {
      if (!algorithm->supports(p, config)) continue;
      const double ms = time_kernel(*algorithm, key, config, {.x = x.data(), .w = w.data(), .y = y.data()}, best.ms,
                                    device, scope.stream());
      if (ms < best.ms) best = {key, algorithm->name, ms};
    }
    if (!best.kernel.empty()) choices.push_back(best);
  }
  return choices;
}

void write_choices(const std::string& path, const std::vector<Choice>& choices, Device device) {
  const std::string text = to_text({measured_here(device), choices});
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace conv

void tune_convolutions(const std::string& path, Device device, const std::function<void()>& body) {
  require_device(device.index);
  const auto choices = conv::measure_choices(conv::convolutions_of(device.index, body), device);
  conv::write_choices(path, choices, device);
  conv::use_choices(device.index, choices);
}

std::string load_convolution_choices(const std::string& path, Device device) {
  require_device(device.index);
  std::ifstream in(path, std::ios::binary);
  if (!in) fail<FileError>(path, ": cannot be opened");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const conv::ChoiceFile file = conv::parse_choices(text, path);
  const std::string why = conv::why_ignored(file.on, conv::measured_here(device), path);
  if (why.empty()) conv::use_choices(device.index, file.choices);
  return why;
}

void forget_convolution_choices() { conv::forget_choices(); }

}  // namespace halo::cuda
