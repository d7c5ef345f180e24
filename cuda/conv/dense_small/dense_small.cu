// Small convolutions with unit stride, forward and backward_input, for latency: float32-accurate or TF32 on Hopper.
//
// Limits: float32 storage, compute capability 9.0, strides of 1, any kernel, dilation, padding and groups, as long as
// everything that a block reads fits its shared memory at once and there are few blocks (plan.cpp).
//
// The GEMM is the dense engine's turned round: rows are target channels, columns positions, depth (source channel,
// tap). Weights are the A operand and go through registers, where they are split, so that they come as plain float32.
// Positions are the B operand: a tile's source is split once and lies in shared memory as [channel / 4][position]
// [channel % 4]; eight neighbouring positions are a core matrix wherever they begin, so a tap is an offset of the
// descriptor. For that, positions are counted in a grid whose rows are long enough to hold the zeros between one row's
// end and the next row's beginning; sums at such positions are thrown away.
//
// Nothing is pipelined: each warpgroup asks for all of its channels' weights and sources at once, and multiplies. A
// block's four warpgroups, and up to eight blocks of a cluster, share the channels; their sums meet in shared memory
// and are added in a fixed order. The grid may start while the one before it ends.
#include <halo/core/error.h>

#include "../../launch.h"
#include "../../runtime/traits.h"
#include "../algorithms.h"
#include "../plan_key.h"
#include "dense_small.cuh"

namespace halo::cuda::conv {
namespace {

std::optional<SmallPlan> make_plan(const ConvProblem& problem, const ConvConfig& config) {
  const DeviceTraits& device = device_traits();
  return device.is_hopper() ? plan_small(problem, config, device.multiprocessors) : std::nullopt;
}

std::shared_ptr<const std::optional<SmallPlan>> plan_for(const ConvProblem& problem, const ConvConfig& config) {
  return kept_plan<make_plan>(problem, config);
}

bool supports(const ConvProblem& problem, const ConvConfig& config) { return plan_for(problem, config)->has_value(); }

std::size_t weight_bytes(const ConvProblem& problem, const ConvConfig& config) {
  return plan_for(problem, config)->value().weight_bytes;
}

double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  return plan_for(problem, config)->value().predicted_ms;
}

/// Weights as [row tile][chunk][tap][thread][4]: a block lays out a chunk.
__global__ void prepare_small_kernel(const __grid_constant__ SmallParams p, bool forward, const float* weights,
                                     float* prepared) {
  device::release_next_grid();
  const int thread = static_cast<int>(threadIdx.x);
  const float* from[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) from[i] = small_weights(p, forward, weights, blockIdx.x, thread, i);
  float* to = prepared + (int64_t{blockIdx.x} * p.taps * 128 + thread) * 4;
  const int first = forward ? 0 : p.taps - 1, step = forward ? 1 : -1;
#pragma unroll 4
  for (int tap = 0; tap < p.taps; ++tap) {
    float value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = from[i] != nullptr ? __ldg(from[i] + first + tap * step) : 0.0f;
    *reinterpret_cast<float4*>(to + int64_t{tap} * kSmallStepFloats) = {value[0], value[1], value[2], value[3]};
  }
}

void prepare_for(const SmallPlan& plan, bool forward, const void* w, void* prepared, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(plan.params.groups * plan.params.row_tiles * plan.params.chunks);
  launch("conv dense_small prepare", prepare_small_kernel, dim3(blocks), 128, 0, stream, plan.params, forward,
         static_cast<const float*>(w), static_cast<float*>(prepared));
}

void prepare(const ConvProblem& problem, const ConvConfig& config, const void* w, void* prepared, cudaStream_t stream) {
  prepare_for(plan_for(problem, config)->value(), config.pass == ConvPass::Forward, w, prepared, stream);
}

template <int Columns>
auto kernel_of(bool accurate) {
  return accurate ? small_kernel<SmallTraits<Columns, 3>> : small_kernel<SmallTraits<Columns, 1>>;
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const SmallPlan plan = plan_for(problem, config)->value();
  const bool forward = config.pass == ConvPass::Forward, accurate = config.precision == Precision::Float32;
  SmallParams params = plan.params;
  params.source_first = operands.prepared == nullptr;
  if (params.source_first) prepare_for(plan, forward, operands.w, operands.workspace, stream);
  params.source = static_cast<const float*>(forward ? operands.x : operands.y);
  params.weights = static_cast<const float*>(params.source_first ? operands.workspace : operands.prepared);
  params.bias = forward && config.bias ? static_cast<const float*>(operands.bias) : nullptr;
  params.target = static_cast<float*>(forward ? operands.y : operands.x);
  params.activation = forward ? config.activation : Activation{};
  const PlainSum plain{Sizes(problem), params.source, static_cast<const float*>(operands.w), forward};
  const dim3 grid(static_cast<unsigned>(params.ranks), static_cast<unsigned>(plan.tiles),
                  static_cast<unsigned>(params.groups * params.row_tiles));
  launch_with({.early = true, .cluster = static_cast<unsigned>(params.ranks)}, "conv dense_small",
              plan.columns == 32 ? kernel_of<32>(accurate) : kernel_of<64>(accurate), grid, kSmallThreads,
              plan.shared_bytes, stream, params, plain);
}

}  // namespace

const Algorithm kDenseSmall{"dense_small", supports, weight_bytes, predict_ms, run, weight_bytes, prepare};

}  // namespace halo::cuda::conv
