// The fallback: plain loops, right for every problem, pass, and extent.
//
// Limits: none on extents, groups, strides, padding or dilation (64-bit offsets throughout); every floating type.
// Forward and backward_input: one thread an output, sums in the order (channel, tap) in the accumulator type. Weight
// gradients: one block a weight, float64 sums in a fixed order, so that the bits do not depend on the launch.
#include <algorithm>

#include "../device/activation.cuh"
#include "algorithms.h"
#include "family.cuh"
#include "ordered_sum.cuh"

namespace halo::cuda::conv {
namespace {

constexpr int kThreads = Teams::kThreads;
constexpr int64_t kMaxBlocks = int64_t{1} << 20;

using device::from_accumulator;

/// Forward or backward_input: `channels` planes of `positions` results an image, `count` in all.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ PlainSumOf<T> plain,
                  const __grid_constant__ small_groups::GatherArguments<T> arguments, int64_t channels,
                  int64_t positions, int64_t count) {
  for (int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x; index < count;
       index += int64_t{gridDim.x} * kThreads) {
    const int64_t row = index / positions, channel = row % channels;
    auto sum = plain.at(row / channels, channel, index % positions);
    if (arguments.bias != nullptr) sum += device::to_accumulator(arguments.bias[channel]);
    arguments.result[index] = from_accumulator<T>(device::apply_activation(arguments.activation, sum));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_weight_kernel(const __grid_constant__ Sizes p, const T* x, const T* y, T* w) {
  __shared__ double shared[kThreads];
  for (int64_t index = blockIdx.x; index < p.out_channels * p.in_per_group * p.taps; index += gridDim.x) {
    const double sum = combine_team(Teams{}, plain_weight_part(p, x, y, index), shared, functor::Add{});
    if (threadIdx.x == 0) w[index] = from_accumulator<T>(static_cast<device::Accumulator<T>>(sum));
  }
}

bool supports(const ConvProblem&, const ConvConfig& config) { return is_floating_point(config.dtype); }

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

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const auto blocks = [](int64_t items) { return dim3(static_cast<unsigned>(std::min(items, kMaxBlocks))); };
  dispatch_floating("convolution", config.dtype, [&]<class T>(std::type_identity<T>) {
    if (config.pass == ConvPass::BackwardWeight) {
      return launch("conv direct backward_weight", backward_weight_kernel<T>, blocks(problem.w_numel()), kThreads, 0,
                    stream, Sizes(problem), static_cast<const T*>(operands.x), static_cast<const T*>(operands.y),
                    static_cast<T*>(operands.w));
    }
    const bool forward = config.pass == ConvPass::Forward;
    const GatherCall<T, false> call(problem, config, operands, stream);
    const int64_t count = forward ? problem.y_numel() : problem.x_numel();
    launch("conv direct", gather_kernel<T>, blocks((count + kThreads - 1) / kThreads), kThreads, 0, stream, call.plain,
           call.arguments, forward ? problem.out_channels : problem.in_channels,
           forward ? problem.output_positions() : problem.input_positions(), count);
  });
}

}  // namespace

const Algorithm kDirect{"direct", supports, no_workspace, predict_ms, run};

}  // namespace halo::cuda::conv
