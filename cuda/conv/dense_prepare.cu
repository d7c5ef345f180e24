// What runs around the dense engine's kernel: weights split and laid out for it, and the ordered sum of split depth.
#include <algorithm>
#include <cfloat>

#include "../device/activation.cuh"
#include "../device/tf32_split.cuh"
#include "../device/wgmma.cuh"
#include "../launch.h"
#include "dense_depth.cuh"
#include "dense_launch.h"

namespace halo::cuda::conv {
namespace {

constexpr int kThreads = 256;

struct PrepareParams {
  DenseAxisMap map[3];
  const float* weights;
  const float* bias;
  float* prepared;
  DenseColumn* columns;
  int64_t high_count;  ///< prepared words without the low parts
  int64_t column_count;
  int column_tile;  ///< columns of a tile
  int parts;        ///< 2: high and low
  int kernel_taps;
  bool forward;
};

/// The kernel's tap along one axis that links output `j` of a group with source offset `offset`, or -1.
__device__ int tap_at(const DenseAxisMap& m, bool forward, int j, int offset) {
  const int distance = forward ? offset + m.padding - m.stride * j : j + m.padding - m.stride * offset;
  if (distance < 0 || distance % m.dilation != 0) return -1;
  const int tap = distance / m.dilation;
  return tap < m.kernel ? tap : -1;
}

struct Column {
  int channel;
  int j[3];
};

__device__ Column column_at(const PrepareParams& q, int column) {
  const int group = q.map[0].group * q.map[1].group * q.map[2].group;
  const int flat = column % group;
  return {column / group,
          {flat / (q.map[1].group * q.map[2].group), flat / q.map[2].group % q.map[1].group, flat % q.map[2].group}};
}

/// The weight that column `column` of channel group `group` has at depth (step of its split, k); 0 where there is none.
__device__ float weight_at(const DenseParams& p, const PrepareParams& q, const DensePhase& phase, int64_t group,
                           int split, int column, int step, int k) {
  const int chunk = split * p.chunks_per_split + step / phase.steps;
  if (step >= p.chunks_per_split * phase.steps || chunk >= p.chunks) return 0;
  const int taps = phase.window[0] * phase.window[1] * phase.window[2];
  const DenseDepth depth = dense_depth(p, phase, step % phase.steps, k);
  const int channel = chunk * p.chunk_channels + depth.channel, tap = depth.tap;
  const Column own = column_at(q, column);
  if (depth.channel >= p.chunk_channels || channel >= p.channels || tap >= taps) return 0;
  if (own.channel >= p.target_channels) return 0;
  const int at[3] = {tap / (phase.window[1] * phase.window[2]), tap / phase.window[2] % phase.window[1],
                     tap % phase.window[2]};
  int flat = 0;
  for (int axis = 0; axis < 3; ++axis) {
    const int offset = phase.off_min[axis] + at[axis] * q.map[axis].tap_step;
    const int kernel_tap = tap_at(q.map[axis], q.forward, phase.j0[axis] + own.j[axis], offset);
    if (kernel_tap < 0) return 0;
    flat = flat * q.map[axis].kernel + kernel_tap;
  }
  const int64_t row = q.forward ? (group * p.target_channels + own.channel) * p.channels + channel
                                : (group * p.channels + channel) * p.target_channels + own.channel;
  return q.weights[row * q.kernel_taps + flat];
}

/// Prepared order: phase, group, column tile, split, step, part (high, low), then core matrices.
__device__ void prepare_weight(const DenseParams& p, const PrepareParams& q, int64_t index) {
  int number = 0;
  while (number + 1 < static_cast<int>(p.phases.divisor) && index * q.parts >= p.phase[number + 1].weight_offset) {
    ++number;
  }
  const DensePhase& phase = p.phase[number];
  const int step_words = q.column_tile * 8;
  const int64_t local = index - phase.weight_offset / q.parts;
  const int word = static_cast<int>(local % step_words);
  const int stages = (p.chunks_per_split * phase.steps + kStepsPerStage - 1) / kStepsPerStage;
  const int64_t flat_step = local / step_words;
  const int step = static_cast<int>(flat_step % (stages * kStepsPerStage));
  int64_t block = flat_step / (stages * kStepsPerStage);
  const int split = static_cast<int>(block % p.splits.divisor);
  block /= p.splits.divisor;
  const int tile = static_cast<int>(block % p.column_tiles.divisor);
  const int64_t group = block / p.column_tiles.divisor;
  const int n = word / 64 * 8 + word % 32 / 4, k = word / 32 % 2 * 4 + word % 4;  // core_matrix_word, backwards
  const float value = weight_at(p, q, phase, group, split, tile * q.column_tile + n, step, k);
  float* to = q.prepared + phase.weight_offset + flat_step * step_words * q.parts + word;
  if (q.parts == 2) {
    const device::Tf32Pair pair = device::split_tf32(value);
    to[0] = __uint_as_float(pair.high);
    to[step_words] = __uint_as_float(pair.low);
  } else {
    to[0] = __uint_as_float(device::round_tf32_finite(value));
  }
}

__device__ void prepare_column(const DenseParams& p, const PrepareParams& q, int64_t index) {
  const Column own = column_at(q, static_cast<int>(index % p.columns_per_group));
  DenseColumn column{-1, 0, 0};
  if (own.channel < p.target_channels) {
    const int64_t row = int64_t{own.j[0]} * p.target_extent[1] + own.j[1];
    column.offset = own.channel * p.target_plane + row * p.target_extent[2] + own.j[2];
    column.j =
        static_cast<uint32_t>(own.j[0]) << 20 | static_cast<uint32_t>(own.j[1]) << 10 | static_cast<uint32_t>(own.j[2]);
    if (q.bias != nullptr) column.bias = q.bias[index / p.columns_per_group * p.target_channels + own.channel];
  }
  q.columns[index] = column;
}

__global__ void prepare_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ PrepareParams q) {
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < q.high_count; i += int64_t{gridDim.x} * kThreads) prepare_weight(p, q, i);
  for (int64_t i = first; i < q.column_count; i += int64_t{gridDim.x} * kThreads) prepare_column(p, q, i);
}

/// Adds the partial results of the splits in order, then what the epilogue would have done.
__global__ void reduce_kernel(const float* partial, int splits, int64_t numel, int64_t plane, int64_t channels,
                              const float* bias, Activation activation, const __grid_constant__ PlainSum plain,
                              float* target) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < numel; i += int64_t{gridDim.x} * kThreads) {
    float sum = partial[i];
    for (int split = 1; split < splits; ++split) sum += partial[split * numel + i];
    const int64_t channel = i / plane % channels;
    if (!(fabsf(sum) <= FLT_MAX)) sum = plain.at(i / plane / channels, channel, i % plane);
    if (bias != nullptr) sum += bias[channel];
    target[i] = device::apply_activation(activation, sum);
  }
}

dim3 blocks_for(int64_t items) {
  return dim3(static_cast<unsigned>(std::min<int64_t>((items + kThreads - 1) / kThreads, 4096)));
}

}  // namespace

void prepare_dense(const DensePlan& plan, const DenseParams& params, const float* weights, const float* bias,
                   bool accurate, cudaStream_t stream) {
  PrepareParams q{};
  std::copy(std::begin(plan.map), std::end(plan.map), q.map);
  q.weights = weights;
  q.bias = bias;
  q.prepared = const_cast<float*>(params.weights);
  q.columns = const_cast<DenseColumn*>(params.columns);
  q.parts = accurate ? 2 : 1;
  q.high_count = plan.weight_floats / q.parts;
  q.column_count = plan.column_count;
  q.column_tile = kDenseVariants[plan.variant].columns;
  q.kernel_taps = static_cast<int>(plan.problem.taps());
  q.forward = plan.forward;
  launch("conv dense prepare", prepare_kernel, blocks_for(std::max(q.high_count, q.column_count)), kThreads, 0, stream,
         params, q);
}

void reduce_dense(const DensePlan& plan, const float* partial, const float* bias, const Activation& activation,
                  const PlainSum& plain, float* target, cudaStream_t stream) {
  const ConvProblem& p = plan.problem;
  const int64_t numel = plan.forward ? p.y_numel() : p.x_numel();
  launch("conv dense reduce", reduce_kernel, blocks_for(numel), kThreads, 0, stream, partial, plan.splits, numel,
         plan.params.target_plane, plan.forward ? p.out_channels : p.in_channels, bias, activation, plain, target);
}

}  // namespace halo::cuda::conv
