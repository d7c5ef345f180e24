// Transposed convolutions of stride 2 with few channels a group, on Hopper: all phases as rows of a warpgroup's
// products, results leave by the copy engine.
//
// Limits: 8 source channels a group, 32 result channels times phases of depth and height; stride 2 of the width, 1 or 2
// of the others; results that read at most two neighbouring positions of an axis; rows of at most 128 source positions;
// planes below 2^30; float32, bfloat16 and float16 of any alignment.
#include <algorithm>

#include "../algorithms.h"
#include "../family.cuh"
#include "../small_groups/limits.h"
#include "kernel.cuh"

namespace halo::cuda::conv {
namespace phase_rows {
namespace {

using small_groups::GroupProblem;

constexpr double kBytesPerMs = 3.1e9, kClocksPerMs = 1.755e6;  // as seen on an H200

/// The taps by phase and neighbour; false where they reach too far.
bool list_taps(const GroupProblem& p, Plan& plan) {
  for (int axis = 0; axis < 3; ++axis) {
    std::fill_n(&plan.tap[axis][0][0], kReach * kReach, -1);
    if (p.phases[axis] > kReach) return false;
    for (int phase = 0; phase < p.phases[axis]; ++phase) {
      for (int i = 0; i < p.taps[axis].count[phase]; ++i) {
        const int offset = p.taps[axis].offset[phase][i];
        if (offset >= kReach) return false;
        plan.tap[axis][phase][offset] = p.taps[axis].tap[phase][i] * p.tap_pitch[axis];
        plan.reach[axis] = std::max(plan.reach[axis], offset + 1);
      }
    }
    if (plan.reach[axis] == 0) return false;
  }
  return true;
}

/// Marches: as few rows as possible are loaded twice, and the last wave of blocks is nearly full.
void divide_marches(Plan& plan, int64_t slices, int64_t multiprocessors) {
  constexpr int64_t kStart = 2;  // items that a march's beginning costs
  int64_t least = 0;
  for (int64_t pieces = 1; pieces <= std::min<int64_t>(plan.heights, 4 * multiprocessors); ++pieces) {
    const int64_t march = divide_up(plan.heights, pieces);
    if (divide_up(plan.heights, march) != pieces) continue;
    if (march > 1 && plan.heights - (pieces - 1) * march == 1) continue;  // a team without an item would miss a phase
    const int64_t cost = divide_up(slices * pieces, multiprocessors) * (march + kStart);
    if (least == 0 || cost < least) {
      least = cost;
      plan.march = to_int(march);
    }
  }
}

/// The runs, by how far they lie behind a word and a line: eight neighbours are a warp's rows, which so meet different
/// banks, if their pitch is 16 words modulo 32 words, or eight of half types.
void list_runs(const GroupProblem& p, int channels, int line, Plan& plan) {
  for (int phase = 0; phase < p.phases[0]; ++phase) {
    for (int channel = 0; channel < channels; ++channel)
      plan.run[plan.runs++] = {static_cast<int16_t>(phase), static_cast<int16_t>(channel)};
  }
  const int per_word = line * 4 / kLineBytes;
  const auto order = [&](const Run& run) {
    const int64_t behind = (run.phase * p.result_rows.outer_pitch + run.channel * p.result_rows.plane_pitch) % line;
    return behind % per_word * line + behind;
  };
  std::stable_sort(plan.run, plan.run + plan.runs, [&](const Run& a, const Run& b) { return order(a) < order(b); });
}

Plan make_plan(const ConvProblem& problem, const ConvConfig& config) {
  Plan plan{};
  const DeviceTraits limits = small_groups::device_limits();
  const bool storage = config.dtype == DType::Float32 || is_half(config.dtype);
  if (!limits.is_hopper() || !storage || config.pass != ConvPass::BackwardInput ||
      problem.out_channels_per_group() > kChannels || !small_groups::small_groups_fit(problem))
    return plan;
  const GroupProblem& p = plan.problem = small_groups::group_problem(problem, false);
  if (p.phases[2] != kPhases || !list_taps(p, plan)) return plan;
  const int size = to_int(static_cast<int64_t>(size_of(config.dtype))), line = kLineBytes / size;
  const int64_t blocks = divide_up(p.result_channels, 8), q = divide_up(p.result[2], kPhases);
  const int row = p.phases[1] * p.result[2];
  if (blocks * p.phases[0] * p.phases[1] > kTeamWarps || q > kPositions || p.source[2] > kPositions || row < line)
    return plan;
  if (std::max(p.source_rows.plane_pitch, p.result_rows.plane_pitch) >= int64_t{1} << 30) return plan;
  list_runs(p, to_int(blocks) * 8, line, plan);
  const int bank = 16 * size;  // bytes modulo 128
  plan.run_pitch = to_int(divide_up((joined(size) * row + line - 1) * size - bank, 128) * 128 + bank) / size;
  plan.heights = to_int(divide_up(p.result[1], p.phases[1]));
  const int64_t depths = divide_up(p.result[0], p.phases[0]), slices = p.batch * p.groups * depths;
  if (slices * plan.heights >= int64_t{1} << 30) return plan;
  divide_marches(plan, slices, limits.multiprocessors);
  const int64_t pieces = divide_up(plan.heights, plan.march);
  plan.depths = FastDivide(static_cast<uint32_t>(depths));
  plan.groups = FastDivide(static_cast<uint32_t>(p.groups));
  plan.pieces = FastDivide(static_cast<uint32_t>(pieces));
  plan.marches = to_int(slices * pieces);
  const bool split = size == 4 && config.precision == Precision::Float32;
  plan.shared_bytes =
      static_cast<std::size_t>(2 * kBarrierBytes + kSlots * plan.reach[0] * row_bytes(size, split ? 2 : 1) +
                               kStages * plan.runs * plan.run_pitch * size);
  if (plan.shared_bytes > limits.block_memory) return plan;
  plan.blocks = std::min<int64_t>(plan.marches, limits.multiprocessors);
  // Bytes, or the clocks of items, whose products have as many columns however few there are.
  const int item = split ? 1800 : size == 4 ? 1200 : 1000;
  const auto items = static_cast<double>(divide_up(plan.marches, plan.blocks) * (plan.march + 2));
  plan.predicted_ms =
      7e-3 + std::max(problem.bytes(static_cast<std::size_t>(size)) / kBytesPerMs, items * item / kClocksPerMs);
  return plan;
}

}  // namespace
}  // namespace phase_rows

const Algorithm kPhaseRows = gather_family<phase_rows::make_plan>(
    "phase rows", []<class T, bool Split>(const phase_rows::Plan& plan, const GatherCall<T, Split>& call) {
      launch("conv phase rows", phase_rows::phase_rows_kernel<T, Split>, dim3(static_cast<unsigned>(plan.blocks)),
             dim3(phase_rows::kThreads), plan.shared_bytes, call.stream, plan, call.arguments, call.plain);
    });

}  // namespace halo::cuda::conv
