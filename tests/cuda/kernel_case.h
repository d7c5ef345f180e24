// One convolution with its operands, run by one kernel, and how far it may be from plain loops in float64.
#pragma once

#include <halo/cuda/conv/dispatch.h>
#include <halo/cuda/launch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace halo::cuda::conv {

/// Device memory inside a larger, NaN-filled allocation, from its element `shift` on.
template <class T>
class Device {
 public:
  explicit Device(std::size_t count, std::size_t shift = 0) : count_(count), shift_(shift) {
    const std::size_t bytes = (count + shift) * sizeof(T) + 256;
    check(cudaMalloc(&data_, bytes), "test");
    check(cudaMemset(data_, 0xFF, bytes), "test");
  }
  explicit Device(const std::vector<T>& host, std::size_t shift = 0) : Device(host.size(), shift) {
    check(cudaMemcpy(get(), host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "test");
  }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  T* get() const { return static_cast<T*>(data_) + shift_; }
  std::vector<T> host() const {
    std::vector<T> result(count_);
    check(cudaMemcpy(result.data(), get(), count_ * sizeof(T), cudaMemcpyDeviceToHost), "test");
    return result;
  }
  /// Nothing was written before the first element or behind the last.
  bool alone() const {
    std::vector<unsigned char> all((count_ + shift_) * sizeof(T) + 256);
    check(cudaMemcpy(all.data(), data_, all.size(), cudaMemcpyDeviceToHost), "test");
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(shift_ * sizeof(T));
    const auto kept = [](unsigned char byte) { return byte == 0xFF; };
    return std::all_of(all.begin(), first, kept) &&
           std::all_of(first + static_cast<std::ptrdiff_t>(count_ * sizeof(T)), all.end(), kept);
  }

 private:
  void* data_ = nullptr;
  std::size_t count_, shift_;
};

using Values = std::vector<float>;

struct Case {
  ConvProblem problem;
  ConvConfig config;
  Values x, w, y, bias;  // the result's own entry is ignored

  std::size_t result_count() const {
    const auto& p = problem;
    return static_cast<std::size_t>(config.pass == ConvPass::Forward         ? p.y_numel()
                                    : config.pass == ConvPass::BackwardInput ? p.x_numel()
                                                                             : p.w_numel());
  }
};

/// Runs what `start` enqueues, with `workspace_bytes` of workspace.
template <class T, class F>
std::vector<T> run_with(const Case& c, std::size_t workspace_bytes, const F& start) {
  const auto as = [](const Values& v) { return std::vector<T>(v.begin(), v.end()); };
  const std::size_t shift = c.config.alignment < 16 ? static_cast<std::size_t>(c.config.alignment) / sizeof(float) : 0;
  const Device<T> x(as(c.x), shift), w(as(c.w), shift), y(as(c.y), shift), bias(as(c.bias), shift);
  const Device<T> result(c.result_count(), shift);
  const Device<char> workspace(workspace_bytes);
  Operands operands{x.get(), w.get(), y.get(), c.config.bias ? bias.get() : nullptr, workspace.get()};
  (c.config.pass == ConvPass::Forward         ? operands.y
   : c.config.pass == ConvPass::BackwardInput ? operands.x
                                              : operands.w) = result.get();
  start(operands);
  check(cudaDeviceSynchronize(), "test");
  EXPECT_TRUE(result.alone()) << c.problem.str();
  return result.host();
}

template <class T>
std::vector<T> run(const Algorithm& algorithm, const Case& c) {
  ConvConfig config = c.config;
  config.dtype = dtype_of<T>();
  return run_with<T>(c, algorithm.workspace_bytes(c.problem, config),
                     [&](const Operands& operands) { algorithm.run(c.problem, config, operands, nullptr); });
}

/// With the weights laid out beforehand, and no workspace for it.
inline Values run_prepared(const Algorithm& algorithm, const Case& c) {
  const Device<char> prepared(algorithm.prepared_bytes(c.problem, c.config));
  return run_with<float>(c, algorithm.workspace_bytes(c.problem, c.config), [&](Operands operands) {
    algorithm.prepare(c.problem, c.config, operands.w, prepared.get(), nullptr);
    operands.prepared = prepared.get();
    algorithm.run(c.problem, c.config, operands, nullptr);
  });
}

enum class Fill { Uniform, Integers };

inline Case make_case(const ConvProblem& problem, ConvPass pass, Precision precision, unsigned seed,
                      Fill fill = Fill::Uniform) {
  Case c{problem, {}, {}, {}, {}, {}};
  c.config.pass = pass;
  c.config.precision = precision;
  c.config.alignment = 16;
  std::mt19937 generator(seed);
  const auto draw = [&](int64_t count) {
    Values v(static_cast<std::size_t>(count));
    for (float& value : v) {
      value = fill == Fill::Integers ? static_cast<float>(static_cast<int>(generator() % 7) - 3)
                                     : std::uniform_real_distribution<float>(-1, 1)(generator);
    }
    return v;
  };
  c.x = draw(problem.x_numel());
  c.w = draw(problem.w_numel());
  c.y = draw(problem.y_numel());
  c.bias = draw(problem.out_channels);
  return c;
}

inline double relative_error(const Values& got, const std::vector<double>& expected) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return norm == 0 ? (error == 0 ? 0 : std::numeric_limits<double>::infinity()) : std::sqrt(error / norm);
}

inline constexpr ConvPass kPasses[] = {ConvPass::Forward, ConvPass::BackwardInput, ConvPass::BackwardWeight};

inline constexpr double kTf32Bound = 1.2e-3;

/// The promise of docs/precision.md: near a plain float32 chain, which the fallback is, or 2.6e-7; 1e-6 for weights.
inline double bound_of(const Case& c, const std::vector<double>& expected) {
  if (c.config.precision == Precision::TF32) return kTf32Bound;
  if (c.config.pass == ConvPass::BackwardWeight) return 1e-6;
  const double floor = expected.size() < 5000 ? 4e-7 : 2.6e-7;  // a few results scatter about the mean error
  return std::max(floor, 1.5 * relative_error(run<float>(find_algorithm("direct"), c), expected));
}

}  // namespace halo::cuda::conv
