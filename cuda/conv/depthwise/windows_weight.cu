// Weight gradients of depthwise convolution of many taps: taps of a row slide along the rows of x.
//
// Limits: groups = in_channels, any channel multiplier; unit stride; unit dilation along the width; all four floating
// types. Any kernel whose boxes fit into shared memory, padding, width, alignment.
#include <algorithm>

#include "../counts.h"
#include "../plan_key.h"
#include "windows.h"
#include "windows_weight.cuh"

namespace halo::cuda::conv {
namespace depthwise {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;
constexpr int64_t kMostShared = 72 * 1024;  // bytes of a block: three of a multiprocessor
constexpr int64_t kBlocksWanted = 132 * 12;

FastDivide divider(int64_t by) { return FastDivide(static_cast<uint32_t>(by)); }

struct WindowsWeightPlan {
  int64_t tile[3] = {1, 1, 1};    ///< results of a block
  int64_t extent[3] = {1, 1, 1};  ///< of the box of x
  int64_t images = 1, x_pitch = 4, y_pitch = 4, segment = 4, segments = 1;
  int64_t row_runs = 1, runs = 1, sets = 1, warp_runs = 1, shares = 1;
  int64_t shared = 0, tasks = 0, splits = 1, blocks = 0;
  double ms = 0;

  int64_t lines() const { return images * tile[0] * tile[1]; }
  int64_t x_lines() const { return images * extent[0] * extent[1]; }
};

/// Fills in what follows from the tile.
void measure(WindowsWeightPlan& plan, const ConvProblem& p, const ConvConfig& config) {
  const int64_t element = config.dtype == DType::Float64 ? 8 : 4;
  int64_t inside = plan.images;  // lines of x
  for (std::size_t i = 0; i < 2; ++i) {
    plan.extent[i] = plan.tile[i] + (p.kernel[i] - 1) * p.dilation[i];
    inside *= std::min(plan.extent[i], p.input[i]);
  }
  // Segments: as many as give every lane one; an odd number of quads where there are several, for the banks.
  const int64_t lanes = 32 * plan.shares, quads = divide_up(plan.tile[2], 4);
  plan.segments = std::clamp<int64_t>(lanes / plan.lines(), 1, divide_up(quads, 3));
  plan.segment = plan.segments > 1 ? odd_quads(divide_up(plan.tile[2], plan.segments)) : quads * 4;
  plan.segments = divide_up(plan.tile[2], plan.segment);
  const int64_t walked = plan.segment * plan.segments;
  plan.extent[2] = walked + plan.row_runs * kTapRun;
  plan.x_pitch = odd_quads(plan.extent[2]);
  plan.y_pitch = odd_quads(walked);
  plan.shared = (plan.x_lines() * plan.x_pitch + plan.lines() * plan.y_pitch) * element;
  plan.tasks = divide_up(p.batch, plan.images);
  for (std::size_t i = 0; i < 3; ++i) plan.tasks *= divide_up(p.output[i], plan.tile[i]);
  const int64_t channel_sets = p.out_channels * plan.sets;
  const int64_t most = static_cast<int64_t>(kWorkspaceCap / sizeof(double)) / p.w_numel();
  plan.splits = std::clamp<int64_t>(divide_up(kBlocksWanted, channel_sets), 1, std::min(plan.tasks, most));
  plan.blocks = channel_sets * plan.splits;
  // Instructions of a block's threads for a task, about.
  const double conflicts = plan.lines() >= 8 ? 1 : 2;
  const int64_t threads = lanes * plan.warp_runs, turns = divide_up(plan.lines() * plan.segments, lanes);
  const auto walk = static_cast<double>(turns * (plan.segment / 4 * 32 + 60)) +
                    conflicts * 2.0 * static_cast<double>(turns * plan.segment);
  const auto copies = static_cast<double>(copy_instructions(inside, std::min(plan.extent[2], p.input[2])) +
                                          copy_instructions(plan.lines(), std::min(plan.tile[2], p.output[2])) +
                                          plan.x_lines() * plan.x_pitch + plan.lines() * plan.y_pitch);
  const double slower = size_of(config.dtype) == 2 ? 1.7 : 1.3;  // than counted; half types are converted
  const double work = slower * (static_cast<double>(threads) * (walk + 200) + copies + 3000);
  const int64_t resident = std::clamp<int64_t>(std::min(220 * 1024 / (plan.shared + 1024), 768 / threads), 1, 16);
  const int64_t room = 132 * resident, in_turn = divide_up(plan.tasks, plan.splits);
  const auto all = static_cast<double>(channel_sets * plan.tasks);
  const double full = std::max(all, 0.5 * static_cast<double>(divide_up(plan.blocks, room) * room * in_turn));
  plan.ms = 6e-3 + std::max(p.bytes(size_of(config.dtype)) / 3.3e9, full * work / 2e10);
}

/// The tiles that take the least time; no blocks where no box fits.
WindowsWeightPlan windows_weight_plan(const ConvProblem& p, const ConvConfig& config) {
  WindowsWeightPlan plan{}, best{};
  plan.row_runs = divide_up(p.kernel[2], kTapRun);
  plan.runs = p.kernel[0] * p.kernel[1] * plan.row_runs;
  plan.sets = divide_up(plan.runs, kWeightWarps);
  plan.warp_runs = divide_up(plan.runs, plan.sets);
  plan.shares = kWeightWarps / plan.warp_runs;
  for (int64_t across = 1; across < 2 * divide_up(p.output[2], 8); across *= 2) {
    plan.tile[2] = divide_up(divide_up(p.output[2], across), 4) * 4;
    for (int64_t down = 1, rows = 0; down <= p.output[1]; ++down) {
      if (divide_up(p.output[1], down) == rows) continue;
      plan.tile[1] = rows = divide_up(p.output[1], down);
      for (int64_t deep = 1; deep < 2 * p.output[0]; deep *= 2) {
        plan.tile[0] = divide_up(p.output[0], deep);
        for (int64_t images = 1; images < 2 * p.batch; images *= 2) {
          plan.images = std::min(images, p.batch);
          measure(plan, p, config);
          if (plan.shared > kMostShared) break;
          if (best.blocks == 0 || plan.ms < best.ms) best = plan;
        }
      }
    }
  }
  return best;
}

WindowsWeightGeometry weight_geometry(const ConvProblem& p, const WindowsWeightPlan& plan) {
  WindowsWeightGeometry g{};
  int64_t x[3], y[3];
  for (std::size_t i = 0; i < 3; ++i) {
    x[i] = p.input[i];
    y[i] = p.output[i];
    g.tile[i] = to_int(plan.tile[i]);
    g.padding[i] = to_int(p.padding_before[i]);
    g.dilation[i] = to_int(p.dilation[i]);
    g.kernel[i] = to_int(p.kernel[i]);
  }
  g.x = line_box(plan.images, x, plan.extent, plan.x_pitch);
  g.y = line_box(plan.images, y, plan.tile, plan.y_pitch);
  g.images = to_int(p.batch);
  g.channels = to_int(p.out_channels);
  g.multiplier = to_int(p.out_channels_per_group());
  g.row_runs = to_int(plan.row_runs);
  g.runs = to_int(plan.runs);
  g.warp_runs = to_int(plan.warp_runs);
  g.segment = to_int(plan.segment);
  g.segments = to_int(plan.segments);
  g.by_lines = divider(plan.lines());
  g.by_height = divider(plan.tile[1]);
  g.by_depth = divider(plan.tile[0]);
  g.tiles_w = divider(divide_up(p.output[2], plan.tile[2]));
  g.tiles_h = divider(divide_up(p.output[1], plan.tile[1]));
  g.tiles_d = divider(divide_up(p.output[0], plan.tile[0]));
  g.sets = divider(plan.sets);
  g.splits = divider(plan.splits);
  g.tasks = static_cast<uint32_t>(plan.tasks);
  g.x_elements = to_int(plan.x_lines() * plan.x_pitch);
  return g;
}

}  // namespace

bool supports_windows_weight(const ConvProblem& p, const ConvConfig& config) {
  if (!is_floating_point(config.dtype) || !p.is_depthwise()) return false;
  if (p.x_numel() == 0 || p.y_numel() == 0 || p.dilation[2] != 1) return false;
  if (p.w_numel() > static_cast<int64_t>(kWorkspaceCap / sizeof(double))) return false;
  if (p.batch * p.out_channels >= kMost || p.taps() >= kMost) return false;
  for (std::size_t i = 0; i < 3; ++i) {
    const int64_t window = (p.kernel[i] - 1) * p.dilation[i];
    if (p.stride[i] != 1 || p.input[i] + p.output[i] + window + std::abs(p.padding_before[i]) >= kMost) return false;
    if (window * 4 > kMostShared) return false;
  }
  if (!has_blocks<windows_weight_plan>(p, config)) return false;
  const auto plan = kept_plan<windows_weight_plan>(p, config);
  return plan->blocks < kMost && plan->tasks < kMost;
}

std::size_t windows_weight_bytes(const ConvProblem& p, const ConvConfig& config) {
  return partial_bytes(p, kept_plan<windows_weight_plan>(p, config)->splits);
}

double predict_windows_weight(const ConvProblem& p, const ConvConfig& config) {
  return kept_plan<windows_weight_plan>(p, config)->ms;
}

void run_windows_weight(const ConvProblem& p, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const auto plan = kept_plan<windows_weight_plan>(p, config);
  dispatch_floating("depthwise convolution", config.dtype, [&]<class T>(std::type_identity<T>) {
    const WindowsWeightParams<T> params{weight_geometry(p, *plan), static_cast<const T*>(operands.x),
                                        static_cast<const T*>(operands.y), static_cast<double*>(operands.workspace)};
    launch("conv depthwise windows backward_weight", depthwise_windows_weight<T>,
           dim3(static_cast<unsigned>(plan->blocks)), dim3(static_cast<unsigned>(32 * plan->warp_runs * plan->shares)),
           static_cast<std::size_t>(plan->shared), stream, params);
    ordered_sum<T>(p, operands, to_int(plan->splits), stream);
  });
}

}  // namespace depthwise
}  // namespace halo::cuda::conv
