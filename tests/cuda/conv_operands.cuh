// Operands of convolutions at any alignment between margins of NaN, and how a kernel is run on them.
#pragma once

#include <halo/cuda/conv/dispatch.h>
#include <halo/cuda/device/number.cuh>
#include <halo/cuda/launch.h>
#include <halo/ops/conv_problem.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "special_numbers.h"

namespace halo::cuda::conv {
namespace {

constexpr int64_t kMargin = 16;  ///< poisoned elements on each side of an operand

template <class T>
__global__ void convert(const float* from, int64_t count, T* to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) to[i] = device::from_accumulator<T>(static_cast<device::Accumulator<T>>(from[i]));
}

template <class T>
__global__ void widen(const T* from, int64_t count, double* to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) to[i] = device::to_accumulator(from[i]);
}

dim3 blocks_for(int64_t count) { return dim3(static_cast<unsigned>(count / 128 + 1)); }

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t count) {
    check(cudaMalloc(&data_, static_cast<std::size_t>(count) * sizeof(T) + 16), "test");
    check(cudaMemset(data_, 0xFF, static_cast<std::size_t>(count) * sizeof(T)), "test");  // NaN in every float type
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  T* get() const { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
};

/// An operand of `count` elements that starts `offset` elements behind a 256-byte boundary and a margin of NaN.
template <class T>
class Operand {
 public:
  Operand(int64_t count, int64_t offset)
      : count_(count), start_(kMargin + offset), all_(count + 2 * kMargin + offset) {}

  T* get() const { return all_.get() + start_; }

  void fill(unsigned seed) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(static_cast<std::size_t>(count_));
    for (float& value : values) value = uniform(generator);
    assign(values);
  }

  void assign(const std::vector<float>& values) {
    const DeviceArray<float> staged(count_);
    check(cudaMemcpy(staged.get(), values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice), "test");
    launch("convert", convert<T>, blocks_for(count_), 128, 0, nullptr, staged.get(), count_, get());
    check(cudaDeviceSynchronize(), "test");
  }

  void set(int64_t index, double value) {
    const DeviceArray<float> staged(1);
    const auto narrow = static_cast<float>(value);
    check(cudaMemcpy(staged.get(), &narrow, sizeof(float), cudaMemcpyHostToDevice), "test");
    launch("convert", convert<T>, 1, 128, 0, nullptr, staged.get(), 1, get() + index);
    check(cudaDeviceSynchronize(), "test");
  }

  std::vector<double> values() const { return read(get(), count_); }

  /// Whether every element outside the operand is still NaN.
  bool margins_intact() const {
    for (const double value : read(all_.get(), start_)) {
      if (!std::isnan(value)) return false;
    }
    for (const double value : read(get() + count_, kMargin)) {
      if (!std::isnan(value)) return false;
    }
    return true;
  }

 private:
  static std::vector<double> read(const T* from, int64_t count) {
    const DeviceArray<double> wide(count);
    launch("widen", widen<T>, blocks_for(count), 128, 0, nullptr, from, count, wide.get());
    std::vector<double> host(static_cast<std::size_t>(count));
    check(cudaMemcpy(host.data(), wide.get(), host.size() * sizeof(double), cudaMemcpyDeviceToHost), "test");
    return host;
  }

  int64_t count_, start_;
  DeviceArray<T> all_;
};

template <class T>
struct Tensors {
  int64_t offset;
  Operand<T> x, w, y;
  Tensors(const ConvProblem& p, int64_t o) : Tensors(p, o, o) {}
  Tensors(const ConvProblem& p, int64_t of_x, int64_t of_y)
      : offset(of_x), x(p.x_numel(), of_x), w(p.w_numel(), of_x), y(p.y_numel(), of_y) {}

  Operand<T>& result(ConvPass pass) { return pass == ConvPass::Forward ? y : pass == ConvPass::BackwardInput ? x : w; }

  Operands operands(void* workspace, const T* bias = nullptr) const {
    return {.x = x.get(), .w = w.get(), .y = y.get(), .bias = bias, .workspace = workspace};
  }
};

/// For operands that start `offset` elements behind their margin.
template <class T>
ConvConfig config_of(ConvPass pass, int64_t offset) {
  ConvConfig config;
  config.pass = pass;
  config.dtype = dtype_of<T>();
  config.alignment = 16;
  while ((kMargin + offset) * int64_t{sizeof(T)} % config.alignment != 0) config.alignment /= 2;
  return config;
}

/// Runs `algorithm` on the operands; the result is poisoned before.
template <class T>
void run_on(const Algorithm& algorithm, const ConvProblem& problem, const ConvConfig& config, Tensors<T>& tensors,
            const std::type_identity_t<T>* bias = nullptr) {
  const DeviceArray<char> workspace(static_cast<int64_t>(algorithm.workspace_bytes(problem, config)));
  algorithm.run(problem, config, tensors.operands(workspace.get(), bias), nullptr);
  check(cudaDeviceSynchronize(), algorithm.name);
}

/// What a bias and a leaky ReLU of slope 0.5 make of the results of forward.
inline void add_bias_and_bend(std::vector<double>& results, const std::vector<double>& biases, const ConvProblem& p) {
  const std::size_t plane = results.size() / static_cast<std::size_t>(p.batch * p.out_channels);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const double sum = results[i] + biases[i / plane % biases.size()];
    results[i] = sum > 0 ? sum : 0.5 * sum;
  }
}

/// Runs `algorithm` on fresh operands.
template <class T>
void run(const Algorithm& algorithm, const ConvProblem& problem, ConvPass pass, Tensors<T>& tensors) {
  if (pass != ConvPass::Forward) tensors.y.fill(3);
  if (pass != ConvPass::BackwardInput) tensors.x.fill(1);
  if (pass != ConvPass::BackwardWeight) tensors.w.fill(2);
  run_on(algorithm, problem, config_of<T>(pass, tensors.offset), tensors);
}

double relative_error(const std::vector<double>& got, const std::vector<double>& expected) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error / norm);
}

/// Rounding of the result to T, about three standard deviations above what uniform data give.
template <class T>
constexpr double kBound = 2.5e-3;  // bfloat16
template <>
constexpr double kBound<Float16> = 3.5e-4;
template <>
constexpr double kBound<float> = 4e-7;
template <>
constexpr double kBound<double> = 1e-14;

}  // namespace
}  // namespace halo::cuda::conv
