// Transposed convolutions (input gradients with a stride) whose results have few taps, on Hopper: the result is nearly
// all the traffic, and its rows leave by the copy engine.
//
// Limits: one group; at most 32 source and 64 result channels, 3 taps of the width, one tap of depth and height for
// each of their phases, stride 8 an axis, some phases without taps; planes below 2^30; float32, bfloat16 and float16 of
// any alignment.
#include <algorithm>
#include <numeric>

#include "../algorithms.h"
#include "../family.cuh"
#include "../small_groups/limits.h"
#include "kernel.cuh"

namespace halo::cuda::conv {
namespace few_taps {
namespace {

using small_groups::GroupProblem;

constexpr double kBytesPerMs = 2.6e9;  // as seen on an H200

/// The taps of the width, and which phases of depth and height have any; false where there are too many, or all results
/// have one.
bool list_taps(const GroupProblem& p, Plan& plan) {
  for (int phase = 0; phase < p.phases[2]; ++phase) {
    for (int i = 0; i < p.taps[2].count[phase]; ++i) {
      if (plan.taps == kTaps) return false;
      plan.tap[plan.taps] = p.taps[2].tap[phase][i] * p.tap_pitch[2];
      plan.phase[plan.taps] = phase;
      plan.offset[plan.taps] = p.taps[2].offset[phase][i];
      plan.last[plan.taps++] = i + 1 == p.taps[2].count[phase];
    }
  }
  int widths = 0, phases = 0;
  for (int phase = 0; phase < p.phases[2]; ++phase) widths += p.taps[2].count[phase] > 0;
  for (const bool with_taps : {true, false}) {
    for (int d = 0; d < p.phases[0]; ++d) {
      for (int h = 0; h < p.phases[1]; ++h) {
        const int depths = p.taps[0].count[d], heights = p.taps[1].count[h];
        if (std::max(depths, heights) > 1) return false;
        if ((depths * heights > 0) == with_taps) plan.outer[phases++] = d * p.phases[1] + h;
      }
    }
    if (with_taps) plan.tapped = phases;
  }
  return plan.taps > 0 && plan.tapped > 0 && plan.tapped * widths < phases * p.phases[2];
}

/// Least pitch of at least `elements` that is `words` modulo 32 words, so that neighbouring channels meet other banks.
int pitch_of(int64_t elements, int words, int size) {
  const int64_t count = divide_up(elements * size, 4);
  return to_int((divide_up(count - words, 32) * 32 + words) * 4 / size);
}

/// The longest items for which there is room; false where there are none. `wanted`: positions of a row.
bool fit_items(Plan& plan, int64_t wanted, int size, int64_t parts, int64_t room) {
  const GroupProblem& p = plan.problem;
  const int line = kLine / size, reach = small_groups::reach(p.taps[2], p.phases[2]);
  const int apart = line / std::gcd(line, p.phases[2]);  // positions of whole lines of results
  const int64_t stage_rows = divide_up(p.result_channels, kWarpChannels) * kWarpChannels;
  for (int positions = kChunk; plan.positions < wanted; positions += kChunk) {
    const int64_t elements = int64_t{positions} * p.phases[2];
    const int64_t own = (elements - line + 1) / p.phases[2] / apart * apart;
    const bool overlaps =
        positions < wanted && own > 0 && divide_up(wanted, own) * 4 <= divide_up(wanted, positions) * 5;
    const int stage_pitch = pitch_of(elements + kSkew / size - 1, kSkew / 4, size);
    const int64_t piece_pitch = int64_t{positions + reach} * device::kGranule;
    const int64_t part_bytes = piece_pitch * kChannels * size / device::kGranule;
    const int64_t bytes = plan.zeros + parts * part_bytes + stage_rows * stage_pitch * size;
    if (bytes > room || positions + reach > kRuns * 32) break;
    plan.positions = positions;
    plan.own = to_int(overlaps ? own : positions);
    plan.source_rows = positions + reach;
    plan.piece_pitch = to_int(piece_pitch);
    plan.part_bytes = to_int(part_bytes);
    plan.stage_pitch = stage_pitch;
    plan.shared_bytes = static_cast<std::size_t>(bytes);
  }
  return plan.positions > 0;
}

Plan make_plan(const ConvProblem& problem, const ConvConfig& config) {
  Plan plan{};
  const DeviceTraits limits = small_groups::device_limits();
  const bool storage = config.dtype == DType::Float32 || is_half(config.dtype);
  if (!limits.is_hopper() || !storage || config.pass != ConvPass::BackwardInput || problem.groups != 1 ||
      problem.out_channels > kChannels || problem.in_channels > kWarps * kWarpChannels ||
      !small_groups::small_groups_fit(problem))
    return plan;
  if (problem.stride[0] * problem.stride[1] * problem.stride[2] == 1 || problem.batch >= int64_t{1} << 30) return plan;
  const GroupProblem& p = plan.problem = small_groups::group_problem(problem, false);
  if (!list_taps(p, plan)) return plan;
  const int size = to_int(static_cast<int64_t>(size_of(config.dtype)));
  const int parts = size == 4 && config.precision == Precision::Float32 ? 2 : 1;
  const int outer_phases = p.phases[0] * p.phases[1];
  if (plan.tapped < outer_phases)
    plan.zeros = to_int(std::min<int64_t>(kZeroBytes, divide_up(int64_t{p.result[2]} * size, 128) * 128)) + 128;
  const auto memory = static_cast<int64_t>(limits.block_memory);
  const int64_t wanted = divide_up(p.result[2], p.phases[2]);
  int blocks = blocks_of(size);  // a multiprocessor
  if (!fit_items(plan, wanted, size, parts, memory / blocks - 1024)) {
    blocks = 1;
    if (!fit_items(plan, wanted, size, parts, memory)) return plan;
  }

  plan.images = FastDivide(static_cast<uint32_t>(problem.batch));
  int64_t rows = problem.batch;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t q = divide_up(p.result[axis], p.phases[axis]), count = axis == 2 ? divide_up(wanted, plan.own) : q;
    plan.tiles[axis] = FastDivide(static_cast<uint32_t>(count));
    if (axis < 2) rows *= count;
  }
  const int64_t items = rows * plan.tapped * plan.tiles[2].divisor;
  if (std::max(items, rows * outer_phases) >= int64_t{1} << 30) return plan;
  plan.items = to_int(items);
  plan.empty_rows = to_int(rows * (outer_phases - plan.tapped));
  plan.blocks = std::min<int64_t>(items, int64_t{limits.multiprocessors} * blocks);
  // Bytes, or the items of a multiprocessor, whose products are of kChunk positions however few there are.
  const auto turns = static_cast<double>(divide_up(items, int64_t{limits.multiprocessors}));
  const double products = static_cast<double>(divide_up(std::min<int64_t>(plan.positions, wanted), kChunk)) *
                          plan.taps * (parts == 2 ? 12 : size);
  plan.predicted_ms = 7e-3 + std::max(problem.bytes(static_cast<std::size_t>(size)) / kBytesPerMs,
                                      turns * (1000 + products * 32) / 1.755e6);
  return plan;
}

}  // namespace
}  // namespace few_taps

const Algorithm kFewTaps = gather_family<few_taps::make_plan>(
    "few taps", []<class T, bool Split>(const few_taps::Plan& plan, const GatherCall<T, Split>& call) {
      launch("conv few taps", few_taps::few_taps_kernel<T, Split>, dim3(static_cast<unsigned>(plan.blocks)),
             dim3(few_taps::kThreads), plan.shared_bytes, call.stream, plan, call.arguments, call.plain);
    });

}  // namespace halo::cuda::conv
