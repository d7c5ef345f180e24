// Transposed convolutions (input gradients with a stride) whose results have one tap of an axis or none, and many
// of whose rows have none, on Hopper: the result is nearly all the traffic, and leaves by the copy engine in whole
// lines.
//
// Limits: one group; at most 32 source channels, 3 taps of the width, stride 8 an axis, one tap for each phase of an
// axis, some phases of the height without taps; rows of at least 256 bytes, of which shared memory holds two items;
// planes below 2^30; any alignment.
#include <algorithm>

#include "../algorithms.h"
#include "../family.cuh"
#include "../small_groups/limits.h"
#include "rows_kernel.cuh"

namespace halo::cuda::conv {
namespace few_taps_rows {
namespace {

using small_groups::GroupProblem;

/// The taps of the width; false where there are too many, or several for one phase.
bool list_taps(const GroupProblem& p, Plan& plan) {
  for (int phase = 0; phase < p.phases[2]; ++phase) {
    if (p.taps[2].count[phase] == 0) continue;
    if (plan.taps == kTaps || p.taps[2].count[phase] > 1) return false;
    plan.tap[plan.taps] = p.taps[2].tap[phase][0] * p.tap_pitch[2];
    plan.shift[plan.taps++] = phase - (p.origin[2] + p.taps[2].offset[phase][0]) * p.phases[2];
  }
  const auto [least, most] = std::minmax_element(plan.shift, plan.shift + std::max(1, plan.taps));
  plan.least_shift = *least;
  plan.most_shift = *most;
  return plan.taps > 0;
}

/// Runs and rows with taps of an item; false where all rows have taps, or none, or one has several of the height.
bool list_rows(const GroupProblem& p, Plan& plan) {
  const int phases = p.phases[1];
  const auto taps_of = [&](int row) { return p.taps[1].count[(row + phases - plan.rotation) % phases]; };
  const auto begins = [&] { return taps_of(0) == 0 && taps_of(phases - 1) > 0; };
  while (plan.rotation < phases && !begins()) ++plan.rotation;
  if (plan.rotation == phases) return false;
  int first = 0, end = 0;
  for (int row = 0; row < phases; ++row) {
    const bool tapped = taps_of(row) > 0;
    if (taps_of(row) > 1) return false;
    if (row == 0 || tapped != plan.run[plan.runs - 1].tapped) plan.run[plan.runs++] = {row, 0, tapped, 0};
    ++plan.run[plan.runs - 1].rows;
    if (!tapped) continue;
    const int phase = (row + phases - plan.rotation) % phases;
    const int source = p.origin[1] + p.taps[1].offset[phase][0] - (row < plan.rotation ? 1 : 0);
    first = plan.tapped == 0 ? source : std::min(first, source);
    end = plan.tapped == 0 ? source + 1 : std::max(end, source + 1);
    plan.tapped_row[plan.tapped++] = {row, p.taps[1].tap[phase][0] * p.tap_pitch[1], source, plan.runs - 1};
  }
  for (int i = 0; i < plan.tapped; ++i) plan.tapped_row[i].source -= first;
  plan.source_first = first;
  plan.source_rows = end - first;
  return true;
}

/// Least pitch of at least `elements` that is `words` modulo 32 words, so that neighbouring channels meet other banks.
int pitch_of(int64_t elements, int words, int size) {
  return to_int(divide_up(divide_up(elements * size, 4) - words, 32) * 32 + words) * 4 / size;
}

/// What lies where in shared memory.
void lay_out(Plan& plan, int size) {
  const GroupProblem& p = plan.problem;
  const int wide = device::kGranule / size, line = kLine / size;
  int64_t stage = 0;
  for (int i = 0; i < plan.runs; ++i) {
    if (!plan.run[i].tapped) continue;
    plan.run[i].stage = to_int(stage);  // a line of zeros before it and behind it
    stage += divide_up(2 * line + kBeside / size + int64_t{plan.run[i].rows} * p.result[2], wide) * wide;
  }
  plan.stage_pitch = pitch_of(stage, 4, size);
  // Lanes read words of four channels, or 16 bytes of eight.
  plan.source_pitch = pitch_of(divide_up(p.source[2], kChunk) * kChunk + wide, size == 4 ? 8 : 4, size);
  const int64_t elements = int64_t{8} * channel_tiles(static_cast<std::size_t>(size)) * plan.stage_pitch +
                           int64_t{plan.source_rows} * kSourceChannels * plan.source_pitch;
  plan.shared_bytes = static_cast<std::size_t>(kBarrierBytes + kZeroBytes + kStages * elements * size);
}

Plan make_plan(const ConvProblem& problem, const ConvConfig& config) {
  Plan plan{};
  const DeviceTraits limits = small_groups::device_limits();
  const bool storage = config.dtype == DType::Float32 || is_half(config.dtype);
  if (!limits.is_hopper() || !storage || config.pass != ConvPass::BackwardInput || problem.groups != 1 ||
      problem.out_channels > kSourceChannels || !small_groups::small_groups_fit(problem))
    return plan;
  const GroupProblem& p = plan.problem = small_groups::group_problem(problem, false);
  const int size = to_int(static_cast<int64_t>(size_of(config.dtype))), wide = device::kGranule / size;
  if (*std::max_element(p.taps[0].count, p.taps[0].count + p.phases[0]) != 1 || p.result[2] * int64_t{size} < 2 * kLine)
    return plan;
  if (!list_taps(p, plan) || !list_rows(p, plan)) return plan;
  plan.aligned = config.alignment >= device::kGranule && p.source[2] % wide == 0;
  plan.shares = kMostWarps / plan.tapped;
  const auto room = static_cast<int64_t>(limits.block_memory);
  if (std::max(int64_t{p.result[2]} * p.phases[1], int64_t{p.source[2]}) >= room) return plan;
  lay_out(plan, size);
  if (plan.shared_bytes > limits.block_memory) return plan;

  const int64_t channels = 8 * channel_tiles(size_of(config.dtype));
  const int64_t heights = divide_up(int64_t{p.result[1]} + plan.rotation, p.phases[1]);
  plan.heights = FastDivide(static_cast<uint32_t>(heights));
  plan.depth_phases = FastDivide(static_cast<uint32_t>(p.phases[0]));
  plan.depths = FastDivide(static_cast<uint32_t>(p.result[0]));
  plan.images = FastDivide(static_cast<uint32_t>(problem.batch));
  plan.items = divide_up(p.result_channels, channels) * problem.batch * p.result[0] * heights;
  if (plan.items >= int64_t{1} << 30) return plan;
  plan.blocks = std::min<int64_t>(plan.items, limits.multiprocessors);
  // Blocks of other channels read the source again.
  const auto sets = static_cast<double>(divide_up(p.result_channels, channels));
  const double bytes = problem.bytes(static_cast<std::size_t>(size)) +
                       (sets - 1) * static_cast<double>(problem.y_numel()) * size / 2,
               items = double(divide_up(plan.items, plan.blocks));
  plan.predicted_ms = 7e-3 + std::max(bytes / 3.2e9, items * 1.5e-3);
  return plan;
}

}  // namespace
}  // namespace few_taps_rows

const Algorithm kFewTapsRows = gather_family<few_taps_rows::make_plan>(
    "few taps rows", []<class T, bool Split>(const few_taps_rows::Plan& plan, const GatherCall<T, Split>& call) {
      launch("conv few taps rows", few_taps_rows::few_taps_rows_kernel<T, Split>,
             dim3(static_cast<unsigned>(plan.blocks)), dim3(few_taps_rows::kThreads), plan.shared_bytes, call.stream,
             plan, call.arguments, call.plain);
    });

}  // namespace halo::cuda::conv
