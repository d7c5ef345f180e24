// The portable engine: all three passes on the tensor cores of every GPU since compute capability 8.0, by mma.sync.
//
// Limits: float32 storage, float32-accurate or TF32; some side of a group has at least 8 channels (both where there are
// several groups); spatial planes below 2^30 positions; strides, paddings and dilated kernels below 2^24; at most 2048
// taps and, in backward_input, 1024 residues modulo the stride; prepared weights, or partial sums of the weight
// gradient, within the workspace cap. Otherwise another kernel runs. Any extents, alignment, stride, dilation and
// padding.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "../../launch.h"
#include "../../runtime/traits.h"
#include "../algorithms.h"
#include "../counts.h"
#include "../ordered_sum.cuh"
#include "../plan_key.h"
#include "kernel.cuh"
#include "weight.cuh"

namespace halo::cuda::conv {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostPhases = 1024;
constexpr double kClocksPerMs = 1.6e6;
constexpr double kTf32Share = 0.58, kTf32WeightShare = 0.75;  // of a float32-accurate step's clocks

struct PortablePlan {
  int shape = 0;
  int64_t blocks = 0, stages = 0;
  int64_t row_tiles = 0, column_tiles = 0;
  double ms = 0;
  std::size_t workspace = 0;
  int64_t splits = 1;  ///< backward_weight
  // Forward and backward_input:
  int most_taps = 0;  ///< of a phase
  int64_t positions = 1, columns = 0;
  int64_t phases[3] = {1, 1, 1}, group[3] = {1, 1, 1};
};

/// Milliseconds of as many waves of `resident` blocks a multiprocessor as the plan needs, each block with `steps` k8
/// steps of `clocks` each. Within a tenth of what an H200 takes.
double wave_ms(const PortablePlan& plan, double steps, double clocks, int resident, int multiprocessors) {
  constexpr double kBlockClocks = 13000;  // first loads, stores
  const double waves = std::ceil(static_cast<double>(plan.blocks) / (1.0 * resident * multiprocessors));
  return waves * (steps * clocks + kBlockClocks) / kClocksPerMs;
}

/// The positions of a group on each axis that may be columns side by side: none; two, four or eight of one axis that
/// neither stride nor dilation spreads; all residues of a strided backward_input at once.
std::vector<std::array<int64_t, 3>> groupings(const Sizes& s, bool forward) {
  constexpr int64_t kMostColumns = 64;
  std::vector<std::array<int64_t, 3>> result{{1, 1, 1}};
  const int64_t outputs = forward ? s.out_per_group : s.in_per_group;
  std::array<int64_t, 3> strides{1, 1, 1};
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (!forward) strides[axis] = s.stride[axis];
    for (int64_t j = 2; j <= 8 && j * outputs <= kMostColumns; j *= 2) {
      if (s.stride[axis] > 1 || s.dilation[axis] > 1 || s.kernel[axis] == 1) break;
      std::array<int64_t, 3> group{1, 1, 1};
      group[axis] = j;
      result.push_back(group);
    }
  }
  const int64_t residues = strides[0] * strides[1] * strides[2];
  if (residues > 1 && residues * outputs <= kMostColumns) result.push_back(strides);
  return result;
}

/// The work of a grouping, whatever the shape of tiles.
PortablePlan plan_grouping(const Sizes& sizes, const std::array<int64_t, 3>& group, bool forward) {
  PortablePlan plan;
  int64_t taps = 1;
  plan.positions = 1;
  plan.columns = forward ? sizes.out_per_group : sizes.in_per_group;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t j = group[static_cast<std::size_t>(axis)];
    plan.group[axis] = j;
    plan.phases[axis] = forward || j > 1 ? 1 : std::min(sizes.stride[axis], sizes.input[axis]);
    int64_t most = 0;
    for (int r = 0; r < plan.phases[axis]; ++r) {
      const PortableAxis a = j > 1 ? portable_grouped_axis(sizes, axis, static_cast<int>(j), forward)
                                   : portable_axis(sizes, axis, r, forward);
      most = std::max<int64_t>(most, a.taps);
      if (r == 0) plan.positions *= a.positions;
    }
    taps *= most;
    plan.columns *= j;
  }
  plan.most_taps = static_cast<int>(taps);
  plan.stages = divide_up(taps * divide_up(forward ? sizes.in_per_group : sizes.out_per_group, 4), 4);
  return plan;
}

/// Forward and backward_input: the grouping and the shape that take least time.
PortablePlan plan_products(const ConvProblem& problem, const ConvConfig& config, int multiprocessors) {
  const bool forward = config.pass == ConvPass::Forward;
  const bool accurate = config.precision == Precision::Float32;
  const Sizes sizes(problem);
  PortablePlan best;
  for (const auto& group : groupings(sizes, forward)) {
    const PortablePlan base = plan_grouping(sizes, group, forward);
    if (base.most_taps > kPortableMostTaps) continue;
    const int64_t phases = base.phases[0] * base.phases[1] * base.phases[2];
    for (const PortableShape& shape : kPortableShapes) {
      PortablePlan plan = base;
      plan.shape = static_cast<int>(&shape - kPortableShapes);
      plan.column_tiles = divide_up(plan.columns, shape.columns());
      plan.row_tiles = divide_up(problem.batch * plan.positions, shape.rows());
      plan.blocks = plan.row_tiles * plan.column_tiles * problem.groups * phases;
      const int64_t padded = phases * problem.groups * plan.stages * plan.column_tiles * shape.columns();
      plan.workspace = static_cast<std::size_t>(padded) * kPortableDepth * sizeof(float);
      const double full = static_cast<double>(phases) * std::max(plan.most_taps, 1);  // had every phase most taps
      const double share = phases > 1 ? static_cast<double>(problem.taps()) / full : 1;
      plan.ms = wave_ms(plan, 2.0 * static_cast<double>(plan.stages) * share,
                        (accurate ? 1 : kTf32Share) * shape.clocks, shape.blocks(), multiprocessors);
      if (best.blocks == 0 || plan.ms < best.ms) best = plan;
    }
  }
  best.ms = std::max(best.ms, problem.bytes(sizeof(float)) / 2e9) + 8e-3;
  return best;
}

/// Backward_weight: the shape that takes least time, and enough parts of the positions to fill the GPU.
PortablePlan plan_weight(const ConvProblem& problem, const ConvConfig& config, int multiprocessors) {
  const int64_t rows = problem.taps() * divide_up(problem.in_channels_per_group(), 4) * 4;
  const int64_t stages = divide_up(problem.batch * problem.output_positions(), kPortablePositions);
  const int64_t most_splits = static_cast<int64_t>(kWorkspaceCap / sizeof(double)) / problem.w_numel();
  const bool accurate = config.precision == Precision::Float32;
  PortablePlan best;
  for (const PortableShape& shape : kPortableShapes) {
    PortablePlan plan;
    plan.shape = static_cast<int>(&shape - kPortableShapes);
    plan.stages = stages;
    plan.column_tiles = divide_up(problem.out_channels_per_group(), shape.columns());
    plan.row_tiles = divide_up(rows, shape.rows());
    const int64_t tiles = plan.column_tiles * plan.row_tiles * problem.groups;
    const int64_t wanted = std::max<int64_t>(1, 4 * multiprocessors / tiles);
    plan.splits = std::clamp<int64_t>(std::min(wanted, stages / 8), 1, std::max<int64_t>(most_splits, 1));
    plan.blocks = tiles * plan.splits;
    plan.workspace = static_cast<std::size_t>(problem.w_numel() * plan.splits) * sizeof(double);
    plan.ms = wave_ms(plan, 4.0 * static_cast<double>(divide_up(stages, plan.splits)),
                      (accurate ? 1 : kTf32WeightShare) * shape.weight_clocks, kPortableWeightBlocks, multiprocessors);
    if (best.blocks == 0 || plan.ms < best.ms) best = plan;
  }
  best.ms = std::max(best.ms, problem.bytes(sizeof(float)) / 2e9) + 12e-3;
  return best;
}

PortablePlan make_plan(const ConvProblem& problem, const ConvConfig& config) {
  return (config.pass == ConvPass::BackwardWeight ? plan_weight : plan_products)(problem, config,
                                                                                 device_traits().multiprocessors);
}

bool supports(const ConvProblem& p, const ConvConfig& config) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (config.dtype != DType::Float32 || p.x_numel() == 0 || p.y_numel() == 0 || p.w_numel() == 0) return false;
  const auto [least, most] = std::minmax({p.in_channels_per_group(), p.out_channels_per_group()});
  if (most < 8 || (p.groups > 1 && least < 8) || p.in_channels >= kMost || p.out_channels >= kMost) return false;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    for (const int64_t value : {p.stride[axis], p.dilation[axis] * p.kernel[axis], p.padding_before[axis]}) {
      if (value < 0 || value >= kPortableExtent) return false;
    }
  }
  int64_t phases = 1;
  for (std::size_t axis = 0; axis < 3; ++axis) phases *= std::min(p.stride[axis], p.input[axis]);
  if (config.pass == ConvPass::BackwardInput && phases > kMostPhases) return false;
  if (p.input_positions() >= kMost || p.output_positions() >= kMost || p.taps() > kPortableMostTaps) return false;
  if (device_traits().major < 8) return false;
  const PortablePlan plan = *kept_plan<make_plan>(p, config);
  return plan.workspace <= kWorkspaceCap && plan.blocks < kMost && plan.stages < kMost;
}

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  return kept_plan<make_plan>(problem, config)->workspace;
}

/// On Hopper half as much again: a near tie is for the engines with wgmma to win.
double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  return kept_plan<make_plan>(problem, config)->ms * (device_traits().major == 9 ? 1.5 : 1);
}

/// Lays weights out: [phase][group][stage][column][16], the 16 depths of a row as portable_fragments reads them, zeros
/// where there are no such channels, taps and columns.
__global__ void __launch_bounds__(kThreads) prepare_kernel(const __grid_constant__ PortableParams p, float* to) {
  __shared__ PortableAxis axis[3];
  const int phase = static_cast<int>(blockIdx.y);
  const int residue[3] = {phase / p.phases[2] / p.phases[1], phase / p.phases[2] % p.phases[1], phase % p.phases[2]};
  if (threadIdx.x < 3) {
    const int i = static_cast<int>(threadIdx.x);
    axis[i] = portable_axis_of(p, i, residue[i]);
  }
  __syncthreads();
  const int64_t taps = int64_t{axis[0].taps} * axis[1].taps * axis[2].taps, columns = p.column_tiles * p.tile_columns;
  const int64_t count = p.groups * columns * p.stages * kPortableDepth;
  for (int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x; index < count;
       index += int64_t{gridDim.x} * kThreads) {
    const int word = static_cast<int>(index % kPortableDepth);
    const int64_t column = index / kPortableDepth % columns, stage = index / kPortableDepth / columns % p.stages;
    const int64_t group = index / kPortableDepth / columns / p.stages;
    const int64_t quad = stage * 4 + portable_quad_place(static_cast<int>(column % 8), word / 4);
    const int64_t channel = taps > 0 ? quad / taps * 4 + word % 4 : p.channels;
    int64_t flat = column < p.columns && channel < p.channels ? 0 : -1;
    if (flat == 0) {
      int64_t tap = quad % taps, j = column / p.outputs, pitch = 1;
      for (int a = 2; a >= 0 && flat >= 0; --a) {
        const int k = portable_kernel_tap(p.plain.sizes, a, axis[a], static_cast<int>(j % axis[a].group),
                                          static_cast<int>(tap % axis[a].taps), p.plain.forward);
        flat = k < 0 ? -1 : flat + k * pitch;
        j /= axis[a].group;
        tap /= axis[a].taps;
        pitch *= p.plain.sizes.kernel[a];
      }
    }
    float value = 0;
    if (flat >= 0) {
      const int64_t output = column % p.outputs;
      const int64_t row = p.plain.forward ? (group * p.outputs + output) * p.channels + channel
                                          : (group * p.channels + channel) * p.outputs + output;
      value = p.plain.weights[row * p.plain.sizes.taps + flat];
    }
    to[int64_t{phase} * count + index] = value;
  }
}

/// Calls f with the tile of `shape` as its template argument.
template <int Products, class F>
void with_portable_tile(int shape, const F& f) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (void)((static_cast<std::size_t>(shape) == I && (f.template operator()<PortableTile<Products, I>>(), true)) || ...);
  }
  (std::make_index_sequence<std::size(kPortableShapes)>());
}

/// Products 3: float32-accurate; 1: TF32.
template <int Products>
void portable_multiply(int shape, const PortableParams& params, dim3 grid, int most_taps, cudaStream_t stream) {
  with_portable_tile<Products>(shape, [&]<class Tile> {
    const std::size_t bytes = sizeof(PortableShared<Tile>) + static_cast<std::size_t>(most_taps) * sizeof(PortableTap);
    launch("conv portable", portable_kernel<Tile>, grid, dim3(kPortableThreads), bytes, stream, params);
  });
}
template <int Products>
void portable_multiply_weight(int shape, const PortableWeightParams& params, dim3 grid, cudaStream_t stream) {
  with_portable_tile<Products>(shape, [&]<class Tile> {
    launch("conv portable weight", portable_weight_kernel<Tile>, grid, dim3(kPortableThreads),
           sizeof(PortableWeightShared<Tile>), stream, params);
  });
}

void run_products(const ConvProblem& problem, const ConvConfig& config, const PortablePlan& plan,
                  const Operands& operands, cudaStream_t stream) {
  const bool forward = config.pass == ConvPass::Forward;
  const Sizes sizes(problem);
  const PortableShape& shape = kPortableShapes[plan.shape];
  PortableParams p{.plain = {sizes, static_cast<const float*>(forward ? operands.x : operands.y),
                             static_cast<const float*>(operands.w), forward},
                   .prepared = static_cast<const float*>(operands.workspace),
                   .bias = forward && config.bias ? static_cast<const float*>(operands.bias) : nullptr,
                   .target = static_cast<float*>(forward ? operands.y : operands.x),
                   .activation = forward ? config.activation : Activation{},
                   .phases = {},
                   .group = {},
                   .source = {},
                   .channels = static_cast<int>(forward ? sizes.in_per_group : sizes.out_per_group),
                   .outputs = static_cast<int>(forward ? sizes.out_per_group : sizes.in_per_group),
                   .columns = static_cast<int>(plan.columns),
                   .groups = static_cast<int>(problem.groups),
                   .stages = static_cast<int>(plan.stages),
                   .column_tiles = static_cast<int>(plan.column_tiles),
                   .tile_columns = shape.columns(),
                   .source_plane = forward ? sizes.input_positions : sizes.output_positions,
                   .target_plane = forward ? sizes.output_positions : sizes.input_positions,
                   .source_step = {}};
  int64_t phases = 1;
  for (int axis = 0; axis < 3; ++axis) {
    p.phases[axis] = static_cast<int>(plan.phases[axis]);
    p.group[axis] = static_cast<int>(plan.group[axis]);
    p.source_step[axis] = (axis + 1) * p.source_plane * int64_t{sizeof(float)};
    p.source[axis] = static_cast<int>(forward ? sizes.input[axis] : sizes.output[axis]);
    phases *= plan.phases[axis];
  }
  const int64_t words = static_cast<int64_t>(plan.workspace / sizeof(float)) / phases;
  launch(
      "conv portable prepare", prepare_kernel,
      dim3(static_cast<unsigned>(std::min<int64_t>(divide_up(words, kThreads), 1024)), static_cast<unsigned>(phases)),
      dim3(kThreads), 0, stream, p, static_cast<float*>(operands.workspace));
  const dim3 grid(static_cast<unsigned>(plan.blocks));
  const auto multiply = config.precision == Precision::Float32 ? portable_multiply<3> : portable_multiply<1>;
  multiply(plan.shape, p, grid, plan.most_taps, stream);
}

void run_weight(const ConvProblem& problem, const ConvConfig& config, const PortablePlan& plan,
                const Operands& operands, cudaStream_t stream) {
  const Sizes sizes(problem);
  PortableWeightParams p{.sizes = sizes,
                         .x = static_cast<const float*>(operands.x),
                         .y = static_cast<const float*>(operands.y),
                         .partial = static_cast<double*>(operands.workspace),
                         .by_plane = FastDivide(static_cast<uint32_t>(sizes.output[1] * sizes.output[2])),
                         .by_width = FastDivide(static_cast<uint32_t>(sizes.output[2])),
                         .groups = static_cast<int>(problem.groups),
                         .splits = static_cast<int>(plan.splits),
                         .row_tiles = static_cast<int>(plan.row_tiles),
                         .column_tiles = static_cast<int>(plan.column_tiles),
                         .stages = plan.stages,
                         .source = {},
                         .x_step = {},
                         .y_step = {}};
  for (int axis = 0; axis < 3; ++axis) {
    p.source[axis] = static_cast<int>(sizes.input[axis]);
    p.x_step[axis] = (axis + 1) * sizes.input_positions * int64_t{sizeof(float)};
    p.y_step[axis] = (axis + 1) * sizes.output_positions * int64_t{sizeof(float)};
  }
  const auto multiply =
      config.precision == Precision::Float32 ? portable_multiply_weight<3> : portable_multiply_weight<1>;
  multiply(plan.shape, p, dim3(static_cast<unsigned>(plan.blocks)), stream);
  ordered_sum<float>(problem, operands, p.splits, stream);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const PortablePlan plan = *kept_plan<make_plan>(problem, config);
  (config.pass == ConvPass::BackwardWeight ? run_weight : run_products)(problem, config, plan, operands, stream);
}

}  // namespace

const Algorithm kPortable{"portable", supports, workspace_bytes, predict_ms, run};

}  // namespace halo::cuda::conv
