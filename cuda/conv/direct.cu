// The fallback: plain loops, right for every problem, pass, and extent.
//
// Limits: none on extents, groups, strides, padding or dilation (64-bit offsets throughout); every floating type.
// Forward and backward_input: one thread an output, sums in the order (channel, tap) in the accumulator type. Weight
// gradients: one block a weight, float64 sums in a fixed order, so that the bits do not depend on the launch.
#include <algorithm>

#include "../device/activation.cuh"
#include "../device/number.cuh"
#include "../launch.h"
#include "algorithms.h"
#include "sizes.cuh"

namespace halo::cuda::conv {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

using device::Accumulator;
using device::from_accumulator;
using device::to_accumulator;

template <class T>
__global__ void forward_kernel(const __grid_constant__ Sizes p, const T* x, const T* w, const T* bias,
                               Activation activation, T* y) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t channels = p.in_per_group;
  for (int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       index < p.batch * p.out_channels * p.output_positions; index += step) {
    const Position o = unflatten(index % p.output_positions, p.output);
    const int64_t row = index / p.output_positions;
    const int64_t out_channel = row % p.out_channels;
    const int64_t first_channel = out_channel / p.out_per_group * channels;
    const int64_t batch = row / p.out_channels;
    Accumulator<T> sum = 0;
    for (int64_t c = 0; c < channels; ++c) {
      const T* plane = x + (batch * p.in_channels + first_channel + c) * p.input_positions;
      const T* taps = w + (out_channel * channels + c) * p.taps;
      for (int64_t t = 0; t < p.taps; ++t) {
        const int64_t at = p.input_at(o, unflatten(t, p.kernel));
        if (at >= 0) sum = fma(to_accumulator(plane[at]), to_accumulator(taps[t]), sum);
      }
    }
    if (bias != nullptr) sum += to_accumulator(bias[out_channel]);
    y[index] = from_accumulator<T>(device::apply_activation(activation, sum));
  }
}

template <class T>
__global__ void backward_input_kernel(const __grid_constant__ Sizes p, const T* y, const T* w, T* x) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t in_per_group = p.in_per_group;
  const int64_t out_per_group = p.out_per_group;
  for (int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       index < p.batch * p.in_channels * p.input_positions; index += step) {
    const Position i = unflatten(index % p.input_positions, p.input);
    const int64_t row = index / p.input_positions;
    const int64_t in_channel = row % p.in_channels;
    const int64_t first_out = in_channel / in_per_group * out_per_group;
    const int64_t batch = row / p.in_channels;
    Accumulator<T> sum = 0;
    for (int64_t c = 0; c < out_per_group; ++c) {
      const T* plane = y + (batch * p.out_channels + first_out + c) * p.output_positions;
      const T* taps = w + ((first_out + c) * in_per_group + in_channel % in_per_group) * p.taps;
      for (int64_t t = 0; t < p.taps; ++t) {
        const int64_t at = p.output_at(i, unflatten(t, p.kernel));
        if (at >= 0) sum = fma(to_accumulator(plane[at]), to_accumulator(taps[t]), sum);
      }
    }
    x[index] = from_accumulator<T>(sum);
  }
}

template <class T>
__global__ void backward_weight_kernel(const __grid_constant__ Sizes p, const T* x, const T* y, T* w) {
  __shared__ double partial[kThreads];
  for (int64_t index = blockIdx.x; index < p.out_channels * p.in_per_group * p.taps; index += gridDim.x) {
    const Position k = unflatten(index % p.taps, p.kernel);
    const int64_t row = index / p.taps;
    const int64_t out_channel = row / p.in_per_group;
    const int64_t in_channel = out_channel / p.out_per_group * p.in_per_group + row % p.in_per_group;
    double sum = 0;
    for (int64_t at = threadIdx.x; at < p.batch * p.output_positions; at += kThreads) {
      const int64_t batch = at / p.output_positions;
      const int64_t flat = at % p.output_positions;
      const int64_t from = p.input_at(unflatten(flat, p.output), k);
      if (from < 0) continue;
      const double g = to_accumulator(y[(batch * p.out_channels + out_channel) * p.output_positions + flat]);
      const double value = to_accumulator(x[(batch * p.in_channels + in_channel) * p.input_positions + from]);
      sum = fma(value, g, sum);
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = kThreads / 2; half > 0; half /= 2) {
      if (static_cast<int>(threadIdx.x) < half) partial[threadIdx.x] += partial[threadIdx.x + half];
      __syncthreads();
    }
    if (threadIdx.x == 0) w[index] = from_accumulator<T>(static_cast<Accumulator<T>>(partial[0]));
    __syncthreads();  // partial[0] has been read
  }
}

bool supports(const ConvProblem&, const ConvConfig& config) { return is_floating_point(config.dtype); }

std::size_t workspace_bytes(const ConvProblem&, const ConvConfig&) { return 0; }

/// As seen on an H200. A thread's steps (channels by taps, also those that read nothing) follow one another; weight
/// gradients want a few hundred blocks.
double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  constexpr double kStepLatency = 2e-4;
  if (config.pass == ConvPass::BackwardWeight)
    return 3e-3 + problem.flops() / 2e8 * std::max(1.0, 320.0 / static_cast<double>(problem.w_numel()));
  const bool forward = config.pass == ConvPass::Forward;
  const int64_t results = forward ? problem.y_numel() : problem.x_numel();
  const int64_t channels = forward ? problem.in_channels_per_group() : problem.out_channels_per_group();
  const auto steps = static_cast<double>(channels * problem.taps());
  return 3e-3 + std::max(static_cast<double>(results) * steps / (forward ? 1.5e8 : 7.5e7), steps * kStepLatency);
}

dim3 blocks_for(int64_t items) { return dim3(static_cast<unsigned>(std::min(items, kMaxBlocks))); }

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const Sizes sizes(problem);
  dispatch_floating("convolution", config.dtype, [&]<class T>(std::type_identity<T>) {
    auto* x = static_cast<T*>(operands.x);
    auto* w = static_cast<T*>(operands.w);
    auto* y = static_cast<T*>(operands.y);
    const auto threads = [](int64_t numel) { return blocks_for((numel + kThreads - 1) / kThreads); };
    switch (config.pass) {
      case ConvPass::Forward:
        return launch("conv direct forward", forward_kernel<T>, threads(problem.y_numel()), kThreads, 0, stream, sizes,
                      x, w, static_cast<const T*>(operands.bias), config.activation, y);
      case ConvPass::BackwardInput:
        return launch("conv direct backward_input", backward_input_kernel<T>, threads(problem.x_numel()), kThreads, 0,
                      stream, sizes, y, w, x);
      case ConvPass::BackwardWeight:
        return launch("conv direct backward_weight", backward_weight_kernel<T>, blocks_for(problem.w_numel()), kThreads,
                      0, stream, sizes, x, y, w);
    }
    fail<InternalError>("convolution: unknown pass");
  });
}

}  // namespace

const Algorithm kDirect{"direct", supports, workspace_bytes, predict_ms, run};

}  // namespace halo::cuda::conv
