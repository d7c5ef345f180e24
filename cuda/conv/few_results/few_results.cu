// Forward and backward_input where few channels come out of many: images from features, gradients of images.
//
// Limits: compute capability 9.0; at most 3 result channels a group, 4 to 64 source channels (float32: a multiple of
// 4); stride 1; one tap of depth without padding, 3 of height without dilation, 3 of width that reach at most kReach
// columns, or kRaggedReach where rows are not whole aligned pieces of four elements.
#include <algorithm>
#include <cmath>

#include "../../runtime/traits.h"
#include "../algorithms.h"
#include "../family.cuh"
#include "../few_images.h"
#include "float.cuh"
#include "half.cuh"

namespace halo::cuda::conv {
namespace few_results {
namespace {

constexpr int kFewestSources = 4;  // channels

constexpr double kClocksPerMs = 1.755e6;
/// Of a stage of half types, as seen on an H200.
constexpr double half_clocks(int width) { return 1050 + 0.8 * width; }
/// Of a scheduler, for a row of a source channel.
constexpr double float_instructions(int side, int columns) {
  return (kTaps * (kTaps * kResults + 1.0 / side) * columns + 20) * (kFloatThreads / 128);
}

/// The taps of an axis in the order of their offsets, which are `apart` apart. False unless there are kTaps.
bool order_taps(const small_groups::AxisTaps& taps, int& apart, int (&ordered)[kTaps]) {
  if (taps.count[0] != kTaps) return false;
  apart = *std::max_element(taps.offset[0], taps.offset[0] + kTaps) / (kTaps - 1);
  for (int i = 0; i < kTaps; ++i) ordered[taps.offset[0][i] / apart] = taps.tap[0][i];
  return true;
}

/// Few strips, since rows that two of them read are read twice, but all multiprocessors at work. Returns the source
/// rows that a multiprocessor reads.
double choose_strips(Plan& plan) {
  const int places = device_traits().multiprocessors;
  const int most_strips = std::clamp(plan.result_rows / 8, 1, 4 * places);
  double best = INFINITY;
  for (int strips = 1; strips <= most_strips; ++strips) {
    const int strip = (plan.result_rows + strips - 1) / strips;
    const int64_t waves = (plan.images * plan.chunks * strips + places - 1) / places;
    const double rows_in_turn = double(waves) * (strip + kTaps - 1);
    if (rows_in_turn >= best) continue;
    best = rows_in_turn;
    plan.strip = strip;
  }
  plan.strips = (plan.result_rows + plan.strip - 1) / plan.strip;
  return best;
}

Plan make_plan(const ConvProblem& problem, const ConvConfig& config) {
  Plan plan{};
  const bool half = is_half(config.dtype);
  if ((!half && config.dtype != DType::Float32) || config.pass == ConvPass::BackwardWeight) return plan;
  if (problem.stride[0] * problem.stride[1] * problem.stride[2] != 1 || !device_traits().is_hopper()) return plan;
  if (!small_groups::small_groups_fit(problem)) return plan;
  const small_groups::GroupProblem g = small_groups::group_problem(problem, config.pass == ConvPass::Forward);
  int rows[kTaps], columns[kTaps], rows_apart = 0, apart = 0;
  const bool whole = g.source[2] % 4 == 0 && config.alignment >= 16;
  const bool fits = g.result_channels <= kResults && g.source_channels >= kFewestSources && g.kernel[0] == 1 &&
                    g.origin[0] == 0 && g.source[0] == g.result[0] && order_taps(g.taps[1], rows_apart, rows) &&
                    rows_apart == 1 && order_taps(g.taps[2], apart, columns) &&
                    apart * (kTaps - 1) <= (whole ? kReach : kRaggedReach) &&
                    (half || g.source_channels % kFloatChannels == 0);
  if (!fits) return plan;
  describe_images(g, plan);
  plan.apart = apart;
  plan.ragged = !whole;
  for (int i = 0; i < kTaps; ++i) {
    for (int j = 0; j < kTaps; ++j) plan.tap[i][j] = rows[i] * g.tap_pitch[1] + columns[j] * g.tap_pitch[2];
  }
  plan.units = (plan.channels + kHalfChunk - 1) / kHalfChunk;
  if (half) {
    // Blocks begin at whole pieces of eight elements.
    const int most = (kHalfColumns - 7 - apart * (kTaps - 1)) / 8 * 8;
    plan.chunks = (plan.result_width + most - 1) / most;
    plan.width = (plan.result_width + plan.chunks * 8 - 1) / (plan.chunks * 8) * 8;
    plan.warps = (plan.width + 7 + apart * (kTaps - 1) + kWarpTiles * 16 - 1) / (kWarpTiles * 16);
    plan.predicted_ms = 6e-3 + choose_strips(plan) * plan.units * half_clocks(plan.width) / kClocksPerMs;
  } else {
    plan.side = whole && apart % 2 == 0 && plan.first_column % 2 == 0 && plan.result_width % 2 == 0 ? 2 : 1;
    const bool fewer = plan.ragged && plan.result_width <= kFloatThreads * (kFloatColumns - 1);
    plan.columns = fewer ? kFloatColumns - 1 : kFloatColumns;
    plan.width = kFloatThreads * plan.columns;
    plan.chunks = (plan.result_width + plan.width - 1) / plan.width;
    plan.predicted_ms =
        std::max(6e-3 + choose_strips(plan) * plan.channels * float_instructions(plan.side, plan.columns) / 1.52e6,
                 4e-3 + problem.bytes(sizeof(float)) / 3.6e9);
  }
  const int64_t blocks = plan.images * plan.chunks * plan.strips;
  if (blocks < int64_t{1} << 31) plan.blocks = blocks;
  return plan;
}

}  // namespace
}  // namespace few_results

const Algorithm kFewResults = gather_family<few_results::make_plan>(
    "few results", []<class T, bool Split>(const few_results::Plan& plan, const GatherCall<T, Split>& call) {
      using namespace few_results;
      const dim3 grid(static_cast<unsigned>(plan.blocks));
      if constexpr (sizeof(T) == 2) {
        launch("conv few results", plan.ragged ? half_kernel<T, true> : half_kernel<T, false>, grid, kHalfBlock,
               half_shared_bytes(plan), call.stream, plan, call.arguments, call.plain);
      } else {
        launch("conv few results",
               plan.columns < kFloatColumns ? float_kernel<1, kFloatColumns - 1, true>
               : plan.ragged                ? float_kernel<1, kFloatColumns, true>
               : plan.side == 2             ? float_kernel<2, kFloatColumns, false>
                                            : float_kernel<1, kFloatColumns, false>,
               grid, kFloatBlock, float_shared_bytes(plan), call.stream, plan, call.arguments, call.plain);
      }
    });

}  // namespace halo::cuda::conv
