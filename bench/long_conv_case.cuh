// One long convolution with its operands, results and float64 references, for halo_bench_long_conv alone.
#pragma once

#include <halo/core/error.h>
#include <halo/cuda/launch.h>
#include <halo/cuda/long_conv/long_conv.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "conv_data.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace halo::bench {
namespace {

using cuda::check;
constexpr int kThreads = 256;

// ---- float64 references, written apart from the kernels they check ----

__host__ __device__ double read(const void* data, DType dtype, int64_t i) {
  if (data == nullptr) return 1;
  switch (dtype) {
    case DType::Float64: return static_cast<const double*>(data)[i];
    case DType::BFloat16: return static_cast<double>(__bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]));
    case DType::Float16: return static_cast<double>(__half2float(static_cast<const __half*>(data)[i]));
    default: return static_cast<double>(static_cast<const float*>(data)[i]);
  }
}

__global__ void convert_kernel(const float* from, void* to, DType dtype, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    if (dtype == DType::Float64) static_cast<double*>(to)[i] = static_cast<double>(from[i]) * (1 + 1e-9 * from[i]);
    if (dtype == DType::Float32) static_cast<float*>(to)[i] = from[i];
    if (dtype == DType::BFloat16) static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(from[i]);
    if (dtype == DType::Float16) static_cast<__half*>(to)[i] = __float2half_rn(from[i]);
  }
}

enum Result { kOutput, kGradX, kGradGateIn, kGradGateOut, kGradWeight, kGradSkip, kResults };
const char* const kResultNames[kResults] = {"y", "dx", "dgate_in", "dgate_out", "dweight", "dskip"};

struct Reference {
  cuda::LongConvOperands a;
  const void* grad_output;
  __device__ double in(int64_t row, int64_t t) const {
    return read(a.x, a.dtype, row * a.problem.length + t) * read(a.gate_in, a.dtype, row * a.problem.length + t);
  }
  __device__ double grad(int64_t row, int64_t t) const {
    return read(grad_output, a.dtype, row * a.problem.length + t) *
           read(a.gate_out, a.dtype, row * a.problem.length + t);
  }
};

__device__ double block_sum(double value) {
  __shared__ double parts[kThreads];
  parts[threadIdx.x] = value;
  __syncthreads();
  for (unsigned width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) parts[threadIdx.x] += parts[threadIdx.x + width];
    __syncthreads();
  }
  return parts[0];
}

/// One element of one result a block: indices[blockIdx.x] into it.
__global__ void reference_kernel(Reference r, Result what, const int64_t* indices, double* out) {
  const LongConvProblem& p = r.a.problem;
  const int64_t index = indices[blockIdx.x], length = p.length, center = p.causal ? 0 : p.kernel / 2;
  double sum = 0;
  if (what == kGradWeight || what == kGradSkip) {
    const int64_t h = what == kGradSkip ? index : index / p.kernel;
    const int64_t lag = what == kGradSkip ? 0 : index % p.kernel - center;
    for (int64_t b = 0; b < p.batch; ++b) {
      for (int64_t t = threadIdx.x; t < length; t += kThreads) {
        if (t - lag >= 0 && t - lag < length) sum += r.grad(b * p.channels + h, t) * r.in(b * p.channels + h, t - lag);
      }
    }
    sum = block_sum(sum);
  } else {
    const int64_t row = index / length, t = index % length, h = row % p.channels;
    const bool forward = what == kOutput || what == kGradGateOut;
    for (int64_t k = threadIdx.x; k < p.kernel; k += kThreads) {
      const int64_t at = forward ? t - k + center : t + k - center;
      if (at < 0 || at >= length) continue;
      sum += read(r.a.weight, r.a.weight_dtype, h * p.kernel + k) * (forward ? r.in(row, at) : r.grad(row, at));
    }
    sum = block_sum(sum);
    if (r.a.skip) sum += read(r.a.skip, r.a.weight_dtype, h) * (forward ? r.in(row, t) : r.grad(row, t));
    sum *= what == kOutput       ? read(r.a.gate_out, r.a.dtype, index)
           : what == kGradX      ? read(r.a.gate_in, r.a.dtype, index)
           : what == kGradGateIn ? read(r.a.x, r.a.dtype, index)
                                 : read(r.grad_output, r.a.dtype, index);
  }
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

__global__ void gather_kernel(const void* data, DType dtype, const int64_t* indices, int count, double* out) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < count) out[i] = read(data, dtype, indices[i]);
}

// ---- one case ----

struct Case {
  LongConvProblem problem;
  DType dtype;
  bool gates;
};

DeviceBuffer& fill(DeviceBuffer& buffer, DType dtype, int64_t count, uint64_t seed) {
  DeviceBuffer floats(static_cast<std::size_t>(std::max<int64_t>(count, 1)) * 4);
  fill_random(floats.floats(), count, seed);
  cuda::launch("convert", convert_kernel, dim3(1024), dim3(kThreads), 0, nullptr, floats.floats(), buffer.data(), dtype,
               count);
  check(cudaDeviceSynchronize(), "fill");
  return buffer;
}

class Run {
 public:
  explicit Run(const Case& c)
      : c_(c),
        rows_(c.problem.x_numel()),
        weights_(c.problem.w_numel()),
        x_(bytes(rows_)),
        gate_in_(bytes(c.gates ? rows_ : 0)),
        gate_out_(bytes(c.gates ? rows_ : 0)),
        grad_output_(bytes(rows_)),
        weight_(bytes(weights_)),
        skip_(bytes(c.problem.channels)),
        y_(bytes(rows_)),
        grad_x_(bytes(rows_)),
        grad_gate_in_(bytes(c.gates ? rows_ : 0)),
        grad_gate_out_(bytes(c.gates ? rows_ : 0)),
        grad_weight_(bytes(weights_)),
        grad_skip_(bytes(c.problem.channels)) {
    fill(x_, c.dtype, rows_, 1);
    fill(grad_output_, c.dtype, rows_, 2);
    fill(weight_, c.dtype, weights_, 3);
    fill(skip_, c.dtype, c.problem.channels, 4);
    operands = {c.problem, c.dtype, c.dtype, x_.data(), weight_.data(), skip_.data(), nullptr, nullptr};
    if (c.gates) {
      fill(gate_in_, c.dtype, rows_, 5);
      fill(gate_out_, c.dtype, rows_, 6);
      operands.gate_in = gate_in_.data();
      operands.gate_out = gate_out_.data();
    }
    grads = {grad_output_.data(), grad_x_.data(), grad_weight_.data(), grad_skip_.data(), nullptr, nullptr};
    if (c.gates) {
      grads.gate_in = grad_gate_in_.data();
      grads.gate_out = grad_gate_out_.data();
    }
  }

  /// Only what PyTorch's comparison computes: no skip weight, no gates.
  void plain() {
    operands.skip = nullptr;
    grads.skip = nullptr;
  }

  void make_workspace() {
    const std::size_t need = std::max(
        {long_conv_forward_workspace(operands), long_conv_backward_workspace(operands, grads), std::size_t{256}});
    workspace_ = std::make_unique<DeviceBuffer>(need);
    poison(workspace_->data(), need);
  }
  std::size_t workspace_bytes() const { return workspace_->bytes(); }
  void forward() { long_conv_forward(operands, y_.data(), workspace_->data(), nullptr); }
  void backward() { long_conv_backward(operands, grads, workspace_->data(), nullptr); }

  struct Target {
    DeviceBuffer* buffer;
    int64_t count;
  };
  Target target(int result) {
    switch (result) {
      case kOutput: return {&y_, rows_};
      case kGradX: return {&grad_x_, rows_};
      case kGradGateIn: return {&grad_gate_in_, c_.gates ? rows_ : 0};
      case kGradGateOut: return {&grad_gate_out_, c_.gates ? rows_ : 0};
      case kGradWeight: return {&grad_weight_, weights_};
      default: return {&grad_skip_, c_.problem.channels};
    }
  }
  void poison_results() {
    for (int i = 0; i < kResults; ++i) poison(target(i).buffer->data(), target(i).buffer->bytes());
  }

  /// Relative Frobenius error of one result over at most `samples` elements; infinite where any element was not
  /// written.
  double error(int result, int samples) {
    const auto [buffer, count] = target(result);
    if (count == 0) return 0;
    std::vector<int64_t> indices;
    uint64_t state = 12345;
    for (int64_t i = 0; i < std::min<int64_t>(samples, count); ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      indices.push_back(count <= samples ? i
                        : i == 0         ? 0
                        : i == 1         ? count - 1
                                         : static_cast<int64_t>((state >> 16) % static_cast<uint64_t>(count)));
    }
    const std::size_t n = indices.size();
    DeviceBuffer where(n * 8), expected(n * 8), got(n * 8);
    check(cudaMemcpy(where.data(), indices.data(), n * 8, cudaMemcpyHostToDevice), "copy");
    const Reference reference{operands, grad_output_.data()};
    cuda::launch("reference", reference_kernel, dim3(static_cast<unsigned>(n)), dim3(kThreads), 0, nullptr, reference,
                 static_cast<Result>(result), static_cast<const int64_t*>(where.data()),
                 static_cast<double*>(expected.data()));
    cuda::launch("gather", gather_kernel, dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)), dim3(kThreads), 0,
                 nullptr, buffer->data(), c_.dtype, static_cast<const int64_t*>(where.data()), static_cast<int>(n),
                 static_cast<double*>(got.data()));
    std::vector<double> e(n), g(n);
    check(cudaMemcpy(e.data(), expected.data(), n * 8, cudaMemcpyDeviceToHost), "copy");
    check(cudaMemcpy(g.data(), got.data(), n * 8, cudaMemcpyDeviceToHost), "copy");
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < n; ++i) {
      difference += (g[i] - e[i]) * (g[i] - e[i]);
      norm += e[i] * e[i];
    }
    if (c_.dtype == float32 && count_poison(buffer->floats(), count) != 0) return INFINITY;
    return norm == 0 ? (difference == 0 ? 0 : INFINITY) : std::sqrt(difference / norm);
  }

  std::vector<std::vector<char>> results() {
    std::vector<std::vector<char>> all;
    for (int i = 0; i < kResults; ++i) {
      const auto [buffer, count] = target(i);
      all.emplace_back(count * size_of(c_.dtype));
      check(cudaMemcpy(all.back().data(), buffer->data(), all.back().size(), cudaMemcpyDeviceToHost), "copy");
    }
    return all;
  }
  float* x() { return x_.floats(); }

  cuda::LongConvOperands operands;
  cuda::LongConvGrads grads;

 private:
  std::size_t bytes(int64_t count) const {
    return static_cast<std::size_t>(std::max<int64_t>(count, 1)) * size_of(c_.dtype);
  }
  Case c_;
  int64_t rows_, weights_;
  DeviceBuffer x_, gate_in_, gate_out_, grad_output_, weight_, skip_;
  DeviceBuffer y_, grad_x_, grad_gate_in_, grad_gate_out_, grad_weight_, grad_skip_;
  std::unique_ptr<DeviceBuffer> workspace_;
};

}  // namespace
}  // namespace halo::bench
