// Many channels out of few: features of images, and their weight gradients.
//
// Limits: compute capability 9.0; at most 4 source channels a group, 16 to 64 result channels; stride 1; one tap of
// depth without padding, at most 3 neighbouring rows of taps, 12 taps (weight gradients and float32: 32 weights of a
// result channel; forward and backward_input of half types: 11 taps); taps of a row reach at most kReach columns;
// shared memory holds the source rows that a run reads. Any width and alignment.
#include <algorithm>
#include <cmath>

#include "../../launch.h"
#include "../../runtime/traits.h"
#include "../algorithms.h"
#include "../few_images.h"
#include "../ordered_sum.cuh"
#include "gather.cuh"
#include "weight_runs.cuh"

namespace halo::cuda::conv {
namespace few_sources {
namespace {

std::size_t shared_bytes(const Plan& plan) {
  return static_cast<std::size_t>(plan.set_results * (kRingBytes + (2 * kMostWeights + 1) * 4)) +
         static_cast<std::size_t>(plan.ring) * static_cast<std::size_t>(plan.words * 4);
}

/// How the source lies in shared memory.
void place_source(Plan& plan, int element_size) {
  plan.words = element_size == 2 ? kSources / 2 : plan.channels;
  plan.pitch = plan.result_width + plan.reach;
  if (element_size == 2) plan.pitch |= 1;  // lanes read every other word: taps of two rows then meet no bank
  plan.by_pitch = FastDivide(static_cast<uint32_t>(plan.pitch));
  // What a run reads, and two parts that it shares with its neighbours or that are on their way.
  const int run = makers(static_cast<std::size_t>(element_size)) * 16,
            ends = (run + plan.result_width - 2) / plan.result_width;  // of rows
  const int64_t span =
      run + int64_t{ends} * (plan.pitch - plan.result_width) + plan.reach + int64_t{plan.tap_rows - 1} * plan.pitch;
  plan.ring = 4096;  // parts that take longer to make than to bring
  while (plan.ring / kParts * (kParts - 2) < span && plan.ring < 1 << 16) plan.ring *= 2;
}

/// What a block makes; returns the positions that a multiprocessor makes.
double divide_results(Plan& plan, int element_size) {
  plan.set_results = plan.results > 32 ? 64 : 32;
  if (shared_bytes(plan) + 1024 > device_traits().block_memory) plan.set_results = 32;
  plan.sets = (plan.results + plan.set_results - 1) / plan.set_results;
  constexpr double kFixed = 400;  // positions, in the time until the first run
  const int places = device_traits().multiprocessors,
            step = plan.whole && plan.result_width % (16 / element_size) != 0 ? 2 : 1;
  double best = INFINITY;
  const auto up = [](int value, int of) { return (value + of - 1) / of; };
  for (int strip = step, strips = 0;; strip = up(up(plan.result_rows, strips - 1), step) * step) {
    strips = up(plan.result_rows, strip);
    const int64_t blocks = plan.images * plan.sets * strips;
    const double turns = double((blocks + places - 1) / places) * (double(strip) * plan.result_width + kFixed);
    if (turns < best) {
      best = turns;
      plan.strip = strip;
      plan.strips = strips;
    }
    if (strips == 1) break;
  }
  return best;
}

/// `images` is 0 where there is none. Times as seen on an H200.
Plan make_plan(const ConvProblem& problem, const ConvConfig& config) {
  const bool half = is_half(config.dtype), of_weights = config.pass == ConvPass::BackwardWeight;
  const int size = static_cast<int>(size_of(config.dtype));
  Plan plan{};
  if (!half && config.dtype != DType::Float32) return plan;
  if (problem.stride[0] * problem.stride[1] * problem.stride[2] != 1) return plan;
  if (!device_traits().is_hopper() || !small_groups::small_groups_fit(problem)) return plan;
  const small_groups::GroupProblem g = small_groups::group_problem(problem, config.pass != ConvPass::BackwardInput);
  const auto reach = [&](int axis) {
    const auto& taps = g.taps[axis];
    return *std::max_element(taps.offset[0], taps.offset[0] + taps.count[0]);
  };
  const bool fits = g.source_channels <= kSources && g.result_channels >= 16 && g.result_channels <= kMostResults &&
                    g.kernel[0] == 1 && g.origin[0] == 0 && g.source[0] == g.result[0] && reach(1) < kTapRows &&
                    g.kernel[1] * g.kernel[2] <= kMostTaps && reach(2) <= kReach;
  const int weights = g.kernel[1] * g.kernel[2] * g.source_channels;
  const bool pieces = config.alignment >= (half ? 8 : 16) && g.source[2] % 4 == 0 && g.result[2] % 4 == 0;
  if (!fits || ((of_weights || !half) && weights > kMostWeights)) return plan;
  describe_images(g, plan);
  plan.source_elements = g.source_rows.elements;
  plan.result_elements = g.result_rows.elements;
  plan.in_pieces = pieces;
  plan.whole = config.alignment >= 16 && plan.result_width % (8 / size) == 0 && plan.result_plane * size % 16 == 0 &&
               plan.result_slice * size % 16 == 0;
  plan.lead = (plan.first_column % 4 + 4) % 4;
  plan.tap_rows = reach(1) + 1;
  plan.reach = reach(2);
  for (int h = 0; h < g.kernel[1]; ++h) {
    for (int w = 0; w < g.kernel[2]; ++w, ++plan.taps) {
      plan.tap[plan.taps] = g.taps[1].tap[0][h] * g.tap_pitch[1] + g.taps[2].tap[0][w];
      plan.row[plan.taps] = g.taps[1].offset[0][h];
      plan.column[plan.taps] = g.taps[2].offset[0][w];
    }
  }
  plan.in_row = FastDivide(static_cast<uint32_t>(plan.result_width));
  constexpr double kClocksPerMs = 1.755e6;
  if (!of_weights) {
    place_source(plan, size);
    if (half && plan.taps >= kMostTaps) return {};
    const double positions = divide_results(plan, size);
    const double many = half ? 9.9 : 18.5, few = half ? 8 : 13;  // clocks of a position of a block
    const double clocks = (plan.set_results == 64 ? many : few) * (half && !plan.whole ? 1.1 : 1);
    plan.predicted_ms = 6e-3 + positions * clocks / kClocksPerMs;
    const bool fits_memory = shared_bytes(plan) + 1024 <= device_traits().block_memory;
    const bool fits_words = int64_t{plan.strip} * plan.result_width < int64_t{1} << 29;  // bytes of a ring's turns
    return fits_memory && fits_words && plan.images * plan.sets * plan.strips < int64_t{1} << 31 ? plan : Plan{};
  }
  const int step = pieces ? kStep : runs_step(size_of(config.dtype));
  const int columns = (plan.result_width + step - 1) / step;
  const int64_t most_steps = 400 * kStep / step;  // of a block: longer sums pass the error bound
  plan.columns = FastDivide(static_cast<uint32_t>(columns));
  plan.rows = FastDivide(static_cast<uint32_t>(plan.result_rows));
  plan.depths = FastDivide(static_cast<uint32_t>(plan.depth));
  plan.steps = g.batch * plan.depth * plan.result_rows * columns;
  if (plan.steps >= int64_t{1} << 31 || plan.groups > 65535) return {};
  const int64_t wave = std::max<int64_t>(1, device_traits().multiprocessors / plan.groups);
  const int64_t waves = (plan.steps + wave * most_steps - 1) / (wave * most_steps);
  plan.splits = static_cast<int>(std::min(plan.steps, wave * waves));
  if (static_cast<std::size_t>(problem.w_numel() * plan.splits) * sizeof(double) > kWorkspaceCap) return {};
  const double clocks = pieces ? (half ? 1200 : 2200) : half ? 3900 : 2700;  // of a stage
  plan.predicted_ms = 9e-3 + double(plan.steps) * plan.groups / device_traits().multiprocessors * clocks / kClocksPerMs;
  return plan;
}

bool supports(const ConvProblem& problem, const ConvConfig& config) { return make_plan(problem, config).images > 0; }

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight) return 0;
  return static_cast<std::size_t>(problem.w_numel() * make_plan(problem, config).splits) * sizeof(double);
}

double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  return make_plan(problem, config).predicted_ms;
}

template <class T, bool Split>
void run_weight(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const Plan plan = make_plan(problem, config);
  const auto start = [&](auto kernel, int shared_bytes) {
    launch("conv few sources backward_weight", kernel,
           dim3(static_cast<unsigned>(plan.splits), static_cast<unsigned>(plan.groups)), kWeightThreads,
           static_cast<std::size_t>(shared_bytes), stream, plan,
           WeightArguments<T>{static_cast<const T*>(operands.x), static_cast<const T*>(operands.y),
                              static_cast<double*>(operands.workspace)});
  };
  plan.in_pieces ? start(weight_kernel<T, Split>, Stage<T>::kStages * Stage<T>::kBytes)
                 : start(weight_runs_kernel<T, Split>, RunsStage<T>::kAllBytes);
  ordered_sum<T>(problem, operands, plan.splits, stream);
}

template <class T, bool Split = false>
void run_as(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  if (config.pass == ConvPass::BackwardWeight) return run_weight<T, Split>(problem, config, operands, stream);
  const Plan plan = make_plan(problem, config);
  const auto* w = static_cast<const T*>(operands.w);
  auto *const x = static_cast<T*>(operands.x), *const y = static_cast<T*>(operands.y);
  const bool forward = config.pass == ConvPass::Forward;
  Arguments<T> arguments{y, w, nullptr, x, {}};
  if (forward) arguments = {x, w, static_cast<const T*>(operands.bias), y, config.activation};
  const auto start = [&](auto kernel) {
    launch("conv few sources", kernel, dim3(static_cast<unsigned>(plan.images * plan.sets * plan.strips)), kThreads<T>,
           shared_bytes(plan), stream, plan, arguments, PlainSumOf<T>{Sizes(problem), arguments.source, w, forward});
  };
  const bool many = plan.set_results == 64;
  if constexpr (sizeof(T) == 2) {
    if (plan.whole) return many ? start(gather_kernel<T, 64, Split, true>) : start(gather_kernel<T, 32, Split, true>);
  }
  many ? start(gather_kernel<T, 64, Split>) : start(gather_kernel<T, 32, Split>);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  switch (config.dtype) {
    case DType::BFloat16: return run_as<BFloat16>(problem, config, operands, stream);
    case DType::Float16: return run_as<Float16>(problem, config, operands, stream);
    default:
      return config.precision == Precision::Float32 ? run_as<float, true>(problem, config, operands, stream)
                                                    : run_as<float>(problem, config, operands, stream);
  }
}

}  // namespace
}  // namespace few_sources

const Algorithm kFewSources{"few sources", few_sources::supports, few_sources::workspace_bytes, few_sources::predict_ms,
                            few_sources::run};

}  // namespace halo::cuda::conv
