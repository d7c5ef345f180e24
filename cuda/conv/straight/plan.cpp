#include <algorithm>
#include <climits>
#include <cmath>

#include "../../runtime/traits.h"
#include "../small_groups/limits.h"
#include "straight.h"

namespace halo::cuda::conv::straight {
namespace {

using small_groups::GroupProblem;

constexpr int64_t kMostChannels = 256;

/// Whether group_problem() can hold `p`.
bool fits(const ConvProblem& p) {
  if (p.groups != 1 || p.x_numel() == 0 || p.y_numel() == 0 || p.w_numel() == 0) return false;
  if (std::max(p.in_channels, p.out_channels) > kMostChannels) return false;
  if (std::max(p.input_positions(), p.output_positions()) >= small_groups::kLargestExtent) return false;
  for (std::size_t i = 0; i < 3; ++i) {
    const int64_t reach = p.kernel[i] * p.dilation[i] + std::abs(p.padding_before[i]);
    if (p.kernel[i] > small_groups::kMostAxisTaps || p.stride[i] > small_groups::kMostPhases ||
        std::max({reach, p.input[i] * p.stride[i], p.output[i] * p.stride[i]}) >= small_groups::kLargestExtent / 2)
      return false;
  }
  return true;
}

int most_units(const GroupProblem& p, int chunks) {
  int most[3] = {0, 0, 0};
  for (int axis = 0; axis < 3; ++axis) {
    for (int phase = 0; phase < p.phases[axis]; ++phase) {
      const int count = p.taps[axis].count[phase];
      most[axis] = axis == 2 ? most[axis] + count : std::max(most[axis], count);
    }
  }
  return most[0] * most[1] * most[2] * chunks;
}

/// Whether 16 bytes of the source are operands of one lane, and 16 bytes of the result its sums.
bool can_pack(const GroupProblem& p, int wide, int alignment) {
  bool packs =
      alignment >= 16 && p.step[2] == 1 && p.phases[2] == 1 && p.source[2] % wide == 0 && p.result[2] % wide == 0;
  for (int i = 0; packs && i < p.taps[2].count[0]; ++i) packs = (p.origin[2] + p.taps[2].offset[0][i]) % wide == 0;
  return packs;
}

void set_activation(const ConvConfig& config, Plan& plan) {
  const Activation& activation = config.activation;
  if (config.pass != ConvPass::Forward || activation.kind == ActivationKind::None) return;
  const bool relu = activation.kind == ActivationKind::Relu;
  plan.bends = relu || (activation.kind == ActivationKind::LeakyRelu && activation.slope <= 1);
  plan.smooth = !plan.bends;
  plan.slope = relu ? 0 : activation.slope;
}

/// Column groups, warps and shared memory; false where not even one column group fits.
bool fit_block(Plan& plan, int size, int all_groups, int64_t room) {
  constexpr int kFewestWarps = 4;
  constexpr int64_t kCached = 80 << 10;  // of the first-level cache, for what neighbouring taps read again
  const int columns = plan.column_tiles * 8,
            span = positions(plan.packs, static_cast<std::size_t>(size)) * plan.problem.step[2];
  const int64_t stage = plan.packs ? kRingBytes : int64_t{plan.stage_pitch} * columns * size;
  int64_t most = most_warps(plan.column_tiles, plan.packs, static_cast<std::size_t>(size));
  if (!plan.packs) most = std::min(most, std::max<int64_t>(kCached / (int64_t{kChunk} * span * size), kFewestWarps));
  for (plan.column_groups = all_groups; plan.column_groups > 0; --plan.column_groups) {
    const int64_t weights = int64_t{plan.column_tiles} * plan.column_groups * (plan.split ? 1024 : 128 * size);
    const int64_t fixed = plan.most_units * (weights + 32) + int64_t{columns} * plan.column_groups * 4;
    const int64_t warps = std::min(most, (room - fixed) / stage);
    if (fixed > room || warps < kFewestWarps) continue;
    plan.warps = to_int(warps);
    plan.shared_bytes = static_cast<std::size_t>(fixed + warps * stage);
    return true;
  }
  return false;
}

constexpr double kClocksPerMs = 1.755e6;  // H200

/// Loads and products of a unit take turns, bytes go on meanwhile in part (the root of the sum of squares), staged
/// results come on top: as seen on an H200.
double predict(const ConvProblem& problem, const Plan& plan, int size) {
  constexpr double kBytesPerMs = 3.6e9, kStagedPerMs = 3e9, kProduct = 1.6, kFillClocks = 500;
  const GroupProblem& p = plan.problem;
  const int row_tiles = positions(plan.packs, static_cast<std::size_t>(size)) / 16;
  const bool one = problem.taps() == 1, few_warps = plan.column_tiles == 8;
  // Packs of half types that several taps read come from the second-level cache each time.
  const double loads = !plan.packs ? 64 : size == 4 || one ? 32 : few_warps ? 240 : 160;
  const double unit = loads + kProduct * (plan.split ? 6 : size == 4 ? 2 : 1) * row_tiles * plan.column_tiles;
  const double units =
      static_cast<double>(plan.items) * plan.column_blocks * plan.chunks * static_cast<double>(problem.taps());
  const double bytes = problem.bytes(static_cast<std::size_t>(size)) / kBytesPerMs;
  const double results = p.phases[2] > 1 ? static_cast<double>(p.result_rows.elements) * size / kStagedPerMs : 0;
  // As seen: half types by single elements where rows have any alignment, above all with many taps; one TF32 product.
  const bool ragged = size == 2 && plan.own < positions(plan.packs, 2), one_product = size == 4 && !plan.split;
  // One tap reads nothing again. Of few channels, packs or not: there its bits are those of operands that begin
  // anywhere.
  const bool few = small_groups::few_channels(problem);
  const bool one_tap = one && (few ? p.result_channels < p.source_channels : plan.packs);
  const bool again = !one && (plan.split || (size == 2 && !plan.packs));
  const double pieces = one_tap       ? 1.4
                        : ragged      ? (plan.most_units > 40 ? 2.0 : 1.5)
                        : one_product ? (p.phases[2] > 1 ? 0.95 : 1.1)
                        : again       ? 1.2
                                      : 1.0;
  const double busy = std::min<double>(small_groups::device_limits().multiprocessors,
                                       static_cast<double>(plan.blocks) * plan.rows_of_blocks);
  const double weights =
      kFillClocks * plan.most_units * plan.column_tiles * plan.column_groups * (size == 4 ? 4 : 1) / plan.warps;
  // Loads that no tap repeats are hidden by other warps, of which there are too few with many sums in registers.
  const double products = units * unit / busy / kClocksPerMs;
  const bool in_turn = one && !few && !plan.packs && few_warps;
  return (one_tap ? 8e-3 : 4e-3) + weights / kClocksPerMs +
         pieces * (in_turn ? bytes + products : std::hypot(bytes, products)) + results;
}

/// Passes over shared memory of a load of eight rows of x at every eighth position, in all cases of where rows begin.
int passes(const GroupProblem& p, int pitch) {
  int total = 0;
  for (int start = 0; start < 8; ++start) {
    int words[32], count[32] = {}, most = 0;
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, lead = to_int((start + row * p.source_rows.plane_pitch) % 8);
      words[lane] = (row * pitch + (lead + lane % 4 * 8 * p.step[2]) * 2) / 4;
      if (std::find(words, words + lane, words[lane]) == words + lane) most = std::max(most, ++count[words[lane] % 32]);
    }
    total += most;
  }
  return total;
}

/// Sets what a step without packs copies: as many positions as shared memory has room for.
void lay_out_rows(WeightPlan& plan, int64_t room) {
  const GroupProblem& p = plan.problem;
  const int dilation = p.kernel[2] > 1 ? p.taps[2].offset[0][1] : 0;
  plan.shared_step = p.kernel[2] > 1 && dilation == p.step[2] && dilation <= 2 ? dilation : 0;
  const int64_t reach = int64_t{std::min(p.kernel[2], kWeightTaps) - 1} * dilation;
  if (reach * 2 * kWeightColumns * kTapStages > room) {  // beyond it, sizes leave an int
    plan.stage_bytes = INT_MAX;
    return;
  }
  for (plan.positions = 192;; plan.positions -= 64) {
    plan.granules = to_int(divide_up((plan.positions - 1) * int64_t{p.step[2]} + reach + 8, 8));
    int fewest = INT_MAX;
    for (int i = 0; i < 8; ++i) {
      const int pitch = (plan.granules + i) * 16, count = passes(p, pitch);
      if (count >= fewest) continue;
      fewest = count;
      plan.x_pitch = pitch;
    }
    plan.y_pitch = plan.positions * 2 + 64;  // two rows of 64 bytes each meet all banks
    plan.stage_bytes = plan.x_pitch * kWeightColumns + plan.y_pitch * weight_rows(false);
    if (plan.positions == 64 || int64_t{plan.stage_bytes} * kTapStages <= room) return;
  }
}

}  // namespace

Plan plan_straight(const ConvProblem& problem, const ConvConfig& config) {
  constexpr int64_t kMostFloatResults = 64;  // beyond, the source is read again, and the dense engine is faster
  constexpr int kWaves = 4;
  Plan plan;
  if ((config.dtype != DType::Float32 && !is_half(config.dtype)) || !fits(problem)) return plan;
  const DeviceTraits limits = small_groups::device_limits();
  const GroupProblem& p = plan.problem = small_groups::group_problem(problem, config.pass == ConvPass::Forward);
  const int size = to_int(static_cast<int64_t>(size_of(config.dtype))), wide = 16 / size;
  if (size == 4 && p.result_channels > kMostFloatResults) return plan;
  plan.split = size == 4 && config.precision == Precision::Float32;
  set_activation(config, plan);
  plan.packs = can_pack(p, wide, config.alignment);
  plan.chunks = to_int(divide_up(p.source_channels, kChunk));
  plan.most_units = most_units(p, plan.chunks);
  const int positions_each = positions(plan.packs, static_cast<std::size_t>(size)), span = positions_each * p.phases[2];
  plan.column_tiles = p.result_channels <= 32 || (!plan.packs && span > 64) ? 4 : 8;
  // 16 bytes modulo 64: what lanes of four channels write falls on different banks.
  plan.stage_pitch = plan.packs ? 0 : to_int(divide_up(span - 1, 4 * wide)) * 4 * wide + wide;
  const bool aligned = config.alignment >= 16 && p.result[2] % wide == 0;
  plan.own = positions_each - (aligned ? 0 : to_int(divide_up(wide - 1, p.phases[2])));
  plan.row_packs = FastDivide(static_cast<uint32_t>(divide_up(int64_t{plan.own} * p.phases[2], wide)));
  const int all_groups = to_int(divide_up(p.result_channels, plan.column_tiles * 8));
  if (!fit_block(plan, size, all_groups, static_cast<int64_t>(limits.block_memory))) return plan;
  plan.column_blocks = to_int(divide_up(all_groups, plan.column_groups));
  plan.groups = FastDivide(static_cast<uint32_t>(plan.column_groups));
  int64_t tiles = p.batch;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t bases = divide_up(p.result[axis], p.phases[axis]);
    const int64_t count = axis == 2 ? divide_up(bases, plan.own) : bases;
    plan.tiles[axis] = FastDivide(static_cast<uint32_t>(count));
    tiles *= count;
  }
  plan.items = tiles * plan.column_groups;
  if (plan.items >= (int64_t{1} << 31)) return plan;
  plan.rows_of_blocks = p.phases[0] * p.phases[1] * plan.column_blocks;
  // Phases without taps are done sooner than others: several blocks for each place.
  plan.blocks = std::min(
      divide_up(plan.items, plan.warps),
      divide_up(int64_t{limits.multiprocessors} * (plan.rows_of_blocks > 1 ? kWaves : 1), plan.rows_of_blocks));
  plan.predicted_ms = predict(problem, plan, size);
  return plan;
}

WeightPlan plan_weight(const ConvProblem& problem, const ConvConfig& config) {
  WeightPlan plan;
  if (!is_half(config.dtype) || !fits(problem)) return plan;
  const GroupProblem& p = plan.problem = small_groups::group_problem(problem, true);
  plan.y_whole = config.alignment >= 16 && p.result[2] % 8 == 0;
  const DeviceTraits limits = small_groups::device_limits();
  plan.engine = limits.is_hopper();
  const auto room = static_cast<int64_t>(limits.block_memory) - 1024;
  plan.taps = to_int(problem.taps());
  const bool alike = p.source_rows.plane_pitch % 8 == 0 && p.result_rows.plane_pitch % 8 == 0;
  plan.leads = plan.y_whole ? Leads::None : alike ? Leads::Alike : Leads::Apart;
  plan.packs = p.kernel[2] == 1 && p.step[2] == 1 && p.origin[2] == 0 && p.source[2] == p.result[2] &&
               (plan.y_whole || limits.is_hopper());
  const bool runs = plan.packs && !plan.y_whole;
  plan.row_groups = to_int(divide_up(p.result_channels, weight_rows(plan.packs)));
  plan.channel_groups = to_int(divide_up(p.source_channels, kWeightColumns));
  plan.tap_groups = to_int(divide_up(p.kernel[2], kWeightTaps));
  plan.rows_of_blocks = int64_t{plan.row_groups} * plan.channel_groups * plan.tap_groups * p.kernel[0] * p.kernel[1];
  if (plan.packs) {
    plan.stage_bytes = (weight_rows(true) + kWeightColumns) * (runs ? kRunPitch : 128);
    if (runs) plan.positions = kRunPositions;
  } else {
    lay_out_rows(plan, room);
  }
  plan.steps = p.batch;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t extent = axis == 2 ? divide_up(p.result[2], plan.positions) : p.result[axis];
    plan.extents[axis] = FastDivide(static_cast<uint32_t>(extent));
    plan.steps *= extent;
  }
  const int64_t stage = plan.stage_bytes;
  const int stages = runs ? kRunStages : plan.packs ? kWeightStages : kTapStages;
  if (plan.steps >= (int64_t{1} << 31) || plan.rows_of_blocks > 65535 || stage * stages > room) return plan;
  plan.shared_bytes = static_cast<std::size_t>(stage * stages);
  const int64_t resident = plan.packs && plan.shared_bytes * 2 + 4096 < limits.block_memory ? 2 : 1;
  plan.blocks = std::min<int64_t>(plan.steps, divide_up(limits.multiprocessors * resident, plan.rows_of_blocks));
  plan.splits = plan.blocks * (runs ? kRunSplits : 1);
  const double of_shared = plan.engine ? 19 : 22;
  // A step's rows into shared memory, and meanwhile the operands of each tap out of it; runs: an order a row.
  const double orders = 60.0 *
                        (std::min(weight_rows(true), p.result_channels) + std::min(kWeightColumns, p.source_channels)) /
                        kRunCopiers;
  const double step = runs ? std::max(orders, std::min(kRunPositions, p.result[2]) * 25.0 + 400)
                      : plan.packs
                          ? static_cast<double>(stage) / 20
                          : std::max(static_cast<double>(stage) / 18,
                                     plan.positions * (plan.shared_step != 0 ? of_shared : of_shared + 8) + 300);
  const double steps = static_cast<double>(plan.steps * plan.rows_of_blocks) / limits.multiprocessors;
  const double partials = static_cast<double>(problem.w_numel() * plan.splits) * 16 / 1e9;
  plan.predicted_ms = 7e-3 + partials + std::max(problem.bytes(2) / 3.4e9, steps * step / kClocksPerMs);
  return plan;
}

}  // namespace halo::cuda::conv::straight
