// What runs around the dense engine's kernel: weights split and laid out for it, and the ordered sum of split depth.
#include <algorithm>
#include <cfloat>

#include "../../device/activation.cuh"
#include "../../device/grid_order.cuh"
#include "../../device/tf32_split.cuh"
#include "../../device/wgmma.cuh"
#include "../../launch.h"
#include "depth.cuh"
#include "launch.h"

namespace halo::cuda::conv {
namespace {

constexpr int kThreads = 256;

constexpr int kStepsPerBlock = 4;  // at most

template <class T>
struct PrepareParams {
  const T* weights;
  float* prepared;
  int column_tile;  ///< columns of a tile
  int parts;        ///< 2: high and low
  int kernel_taps;
  int group;  ///< J of all axes together
  int steps_per_block;
  bool forward;
};

/// A share of the prepared weights: up to q.steps_per_block steps of one channel chunk, all columns of a tile. The
/// steps that pad the last stage belong to a split's last chunk. Prepared order: phase, group, column tile, split,
/// step, part (high, low), then core matrices.
struct Slab {
  const DensePhase& phase;
  int first_step, end_step;  ///< within the chunk; from phase.steps on they are padding
  int chunk, tile;
  int64_t group;
  float* to;  ///< where the chunk's step 0 goes

  __device__ static const DensePhase& phase_of(const DenseParams& p) { return p.phase[blockIdx.x % p.phases.divisor]; }

  template <class T>
  __device__ Slab(const DenseParams& p, const PrepareParams<T>& q) : phase(phase_of(p)) {
    uint32_t index = blockIdx.x / p.phases.divisor;
    const auto take = [&index](uint32_t count) {
      const uint32_t value = index % count;
      index /= count;
      return static_cast<int>(value);
    };
    const int local = take(static_cast<uint32_t>(p.chunks_per_split));
    const int split = take(p.splits.divisor);
    tile = take(p.column_tiles.divisor);
    group = index;
    chunk = split * p.chunks_per_split + local;
    const int steps = (p.chunks_per_split * phase.steps + kStepsPerStage - 1) / kStepsPerStage * kStepsPerStage;
    const bool last = local + 1 == p.chunks_per_split;
    first_step = static_cast<int>(blockIdx.y) * q.steps_per_block;
    end_step = min(first_step + q.steps_per_block, last ? steps - local * phase.steps : phase.steps);
    const int64_t block = (group * p.column_tiles.divisor + tile) * p.splits.divisor + split;
    to = q.prepared + phase.weight_offset + (block * steps + local * phase.steps) * q.column_tile * 8 * q.parts;
  }
};

/// The slab's weights. taps[(step * depths + k) * J + j] are worked out once; depths is 1 where k only picks a channel.
template <class T>
__device__ void prepare_weights(const DenseParams& p, const PrepareParams<T>& q, const Slab& slab, int* taps) {
  const int depths = p.folded ? 8 : 1;
  const int steps = slab.end_step - slab.first_step;
  for (int i = static_cast<int>(threadIdx.x); i < steps * depths * q.group; i += kThreads) {
    const int step = slab.first_step + i / (depths * q.group);
    taps[i] = dense_kernel_tap(p, q.forward, slab.phase, step, i / q.group % depths, i % q.group);
  }
  __syncthreads();
  const int step_words = q.column_tile * 8;
  for (int word = static_cast<int>(threadIdx.x); word < step_words; word += kThreads) {
    const int n = word / 64 * 8 + word % 32 / 4, k = word / 32 % 2 * 4 + word % 4;  // core_matrix_word, backwards
    const DensePlace own = dense_place(p, slab.tile * q.column_tile + n);
    float value[kStepsPerBlock];  // all loads before the first store
#pragma unroll
    for (int i = 0; i < kStepsPerBlock; ++i) {
      const DenseDepth depth = dense_depth(p, slab.phase, slab.first_step + i, k);
      const int channel = slab.chunk * p.chunk_channels + depth.channel;
      const int tap = i < steps ? taps[(i * depths + k % depths) * q.group + own.j] : -1;
      const bool real =
          tap >= 0 && depth.channel < p.chunk_channels && channel < p.channels && own.channel < p.target_channels;
      const int64_t row = q.forward ? (slab.group * p.target_channels + own.channel) * p.channels + channel
                                    : (slab.group * p.channels + channel) * p.target_channels + own.channel;
      value[i] = real ? device::to_accumulator(q.weights[row * q.kernel_taps + tap]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kStepsPerBlock; ++i) {
      if (i >= steps) break;
      float* to = slab.to + int64_t{slab.first_step + i} * step_words * q.parts + word;
      if (q.parts == 2) {
        const device::Tf32Pair pair = device::split_tf32(value[i]);
        to[0] = __uint_as_float(pair.high);
        to[step_words] = __uint_as_float(pair.low);
      } else {
        to[0] = __uint_as_float(device::round_tf32_finite(value[i]));
      }
    }
  }
}

template <class T>
__global__ void prepare_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ PrepareParams<T> q) {
  extern __shared__ int taps[];
  device::release_next_grid();
  const Slab slab(p, q);
  if (slab.first_step < slab.end_step) prepare_weights(p, q, slab, taps);
}

/// Adds the partial results of the splits in order, then what the epilogue would have done.
__global__ void reduce_kernel(const float* partial, int splits, int64_t numel, int64_t plane, int64_t channels,
                              const float* bias, Activation activation, const __grid_constant__ PlainSum plain,
                              float* target) {
  constexpr int kBatch = 8;  // loads in flight
  device::wait_for_previous_grid();
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < numel; i += int64_t{gridDim.x} * kThreads) {
    float sum = 0;
    for (int first = 0; first < splits; first += kBatch) {
      float value[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) value[k] = first + k < splits ? partial[(first + k) * numel + i] : 0.0f;
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (first + k < splits) sum += value[k];
      }
    }
    if (!(fabsf(sum) <= FLT_MAX)) sum = plain.at(i / plane / channels, i / plane % channels, i % plane);
    if (bias != nullptr) sum += bias[i / plane % channels];
    target[i] = device::apply_activation(activation, sum);
  }
}

dim3 blocks_for(int64_t items) {
  return dim3(static_cast<unsigned>(std::min<int64_t>((items + kThreads - 1) / kThreads, 4096)));
}

}  // namespace

template <class T>
void prepare_dense(const DensePlan& plan, const T* weights, bool accurate, float* prepared, cudaStream_t stream) {
  const DenseParams& params = plan.params;
  PrepareParams<T> q{};
  q.weights = weights;
  q.prepared = prepared;
  q.parts = accurate ? 2 : 1;
  q.column_tile = kDenseVariants[plan.variant].columns;
  q.kernel_taps = static_cast<int>(plan.problem.taps());
  q.forward = plan.forward;
  q.group = params.map[0].group * params.map[1].group * params.map[2].group;
  int longest = 0;  // the grid's x grows with channels and groups, y with the kernel's taps
  for (uint32_t i = 0; i < params.phases.divisor; ++i) longest = std::max(longest, params.phase[i].steps);
  const int64_t slabs = int64_t{params.phases.divisor} * params.groups.divisor * params.column_tiles.divisor *
                        params.splits.divisor * params.chunks_per_split;
  constexpr int64_t kFewBlocks = 512;  // then shorter ones: a small convolution waits for them
  longest += kStepsPerStage - 1;
  q.steps_per_block = slabs * ((longest + kStepsPerBlock - 1) / kStepsPerBlock) < kFewBlocks ? 1 : kStepsPerBlock;
  const dim3 grid(static_cast<unsigned>(slabs),
                  static_cast<unsigned>((longest + q.steps_per_block - 1) / q.steps_per_block));
  const auto shared = static_cast<std::size_t>(kStepsPerBlock * (params.folded ? 8 : 1) * q.group) * sizeof(int);
  launch("conv dense prepare", prepare_kernel<T>, grid, kThreads, shared, stream, params, q);
}

template void prepare_dense(const DensePlan&, const float*, bool, float*, cudaStream_t);
template void prepare_dense(const DensePlan&, const BFloat16*, bool, float*, cudaStream_t);
template void prepare_dense(const DensePlan&, const Float16*, bool, float*, cudaStream_t);

void reduce_dense(const DensePlan& plan, const float* partial, const float* bias, const Activation& activation,
                  const PlainSum& plain, float* target, cudaStream_t stream) {
  const ConvProblem& p = plan.problem;
  const int64_t numel = plan.forward ? p.y_numel() : p.x_numel();
  launch_early("conv dense reduce", reduce_kernel, blocks_for(numel), kThreads, 0, stream, partial, plan.splits, numel,
               plan.params.target_plane, plan.forward ? p.out_channels : p.in_channels, bias, activation, plain,
               target);
}

}  // namespace halo::cuda::conv
