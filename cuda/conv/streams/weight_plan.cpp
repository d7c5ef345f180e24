#include <algorithm>
#include <set>

#include "../small_groups/limits.h"
#include "weight.h"

namespace halo::cuda::conv::streams {
namespace {

using small_groups::device_limits;

constexpr int kBanks = 128;  // bytes

int64_t up_to(int64_t least, int64_t rest) { return least + ((rest - least) % kBanks + kBanks) % kBanks; }

/// Passes over shared memory of a load of x by 8 channels, four lanes of each: single words at every fourth position
/// wherever runs may begin, whole fours, or pairs at neighbouring positions.
int passes(const ChannelMap& map, const WeightPlan& plan, int64_t plane_bytes, int size) {
  const int words_of_lane = plan.by_rows ? size / 2 : plan.x_whole ? size : 1, lanes_of_pass = 32 / words_of_lane;
  const int apart = plan.by_rows ? 8 : 4 * plan.x.width.step * size, granule = plan.by_rows ? 2 * size : size;
  int all = 0;
  for (int lead = 0; lead < (plan.x_whole ? 1 : 16); lead += granule) {
    for (int first = 0; first < 32; first += lanes_of_pass) {
      std::set<int64_t> words;
      int count[32] = {}, most = 0;
      for (int lane = first; lane < first + lanes_of_pass; ++lane) {
        const int channel = lane / 4;
        const int64_t at = channel % 4 * map.pitch + channel / 4 * map.quad_pitch +
                           (lead + channel * plane_bytes) % 16 + lane % 4 * apart;
        for (int64_t word = at / 4; word < at / 4 + words_of_lane; ++word)
          if (words.insert(word).second) most = std::max(most, ++count[word % 32]);
      }
      all += most;
    }
  }
  return all;
}

/// Modulo kBanks the pitches where a warp's loads meet most banks.
ChannelMap choose_map(const WeightPlan& plan, int64_t plane_bytes, int size) {
  constexpr int kApart = 1 << 16;  // channels do not overlap
  ChannelMap best;
  int fewest = 0;
  for (int bank = 0; bank < kBanks; bank += 16) {
    for (int quad = 0; quad < kBanks; quad += 16) {
      ChannelMap map{.pitch = kApart + bank, .quad_pitch = 8 * kApart + quad};
      const int count = passes(map, plan, plane_bytes, size);
      if (fewest == 0 || count < fewest) fewest = count, best = map;
    }
  }
  return best;
}

/// What the positions of a warp or warpgroup are; false where the form does not take the problem.
bool choose_form(WeightPlan& plan, bool by_rows, int size, int alignment) {
  Plan& x = plan.x;
  const int step = x.width.step, chunks = to_int(divide_up(x.channels, 8));
  plan.by_rows = by_rows;
  plan.y_whole = alignment >= 4 * size && x.width.result % 4 == 0;
  int owners = 0, positions = 16;
  if (by_rows) {
    const int lead = alignment < 2 * size ? 1 : x.width.origin & 1;
    if (step != 2 || (plan.live > 1 && x.phases == 1) || x.width.source % 2 != 0 || x.width.kernel + lead > 8 ||
        chunks > 3)
      return false;
    if (x.height.step != 2 || x.height.apart != 1 || x.height.kernel > kMostRowTaps) return false;
    plan.x_whole = false;
    plan.splits = kRowWarpgroups / chunks;
    owners = 4 * chunks;
    positions = row_positions(size);
  } else {
    const int most_taps = step == 2 ? 7 : step == 3 ? 5 : 0;
    if (x.width.kernel > most_taps) return false;
    plan.width_taps = step == 2 && x.width.kernel <= 3 ? 3 : most_taps;
    plan.x_whole = step == 2 && alignment >= 4 * size && x.width.source % 4 == 0 &&
                   (x.width.origin + plan.width_taps / 2) % 4 == 0;
    plan.rows = plan.width_taps == 3 && x.height.kernel == 3 ? 3 : 1;
    owners = chunks * (x.height.kernel / plan.rows);
    const int warps = weight_warps(plan.rows, plan.width_taps, size == 2);
    plan.splits = (warps - 1) / owners;
    plan.fillers = std::min(2, warps - owners * plan.splits);
  }
  x.users = owners * plan.splits;
  const int64_t pieces = divide_up(x.width.result, positions);
  plan.by_row = FastDivide(static_cast<uint32_t>(by_rows ? pieces * positions / 4 : pieces));
  return x.users > 0;
}

/// Clocks of a multiprocessor for a unit with `rows` of x, as seen on an H200 (27 plans within 20 %): a scheduler takes
/// 1.25 an instruction, 7.3 a product of the tensor cores.
double work_of(const WeightPlan& plan, int64_t rows, int size) {
  const Plan& x = plan.x;
  const int pieces = to_int(plan.by_row.divisor);
  const double pair = x.phases == 1 ? 1 : x.phases == 2 ? 0.5 : 2.0 / x.phases;
  const double single = x.depth.kernel == 1 ? 0 : 1.0 / x.phases;
  if (plan.by_rows) {
    const double piece = size == 4 ? 100 + 107 * (2 * pair + single) : 140 + 45 * (2 * pair + single);
    return static_cast<double>(rows) * pieces * 4 / row_positions(size) * piece * kRowWarpgroups / plan.splits;
  }
  const int taps = plan.rows * plan.width_taps, owners = x.users / plan.splits;
  const double of_x = plan.rows * (3 * x.width.step + plan.width_taps) * (size == 4 ? 5.0 : 3.75) + 55;
  const double of_y =
      size == 4 ? pair * (49 * taps + 30) + single * (34 * taps + 15) : (pair + single) * (10 * taps + 5);
  return double(x.heights) * pieces * owners * (of_x + of_y) / 3.7;
}

/// Sets `best` to the plan with the least predicted time, if `plan` has one with less.
void choose_items(const ConvProblem& problem, int size, WeightPlan& plan, WeightPlan& best) {
  Plan& x = plan.x;
  const DeviceTraits limits = device_limits();
  const int64_t blocks = int64_t{x.groups} * x.result_sets;
  const int64_t plane_bytes = int64_t{x.depth.source} * x.height.source * x.width.source * size;
  const ChannelMap map = choose_map(plan, plane_bytes, size);
  const int sums_of_lane = plan.by_rows ? kMostDepthTaps * kMostRowTaps * 4 : plan.rows * plan.width_taps * 6;
  const auto sums = static_cast<std::size_t>(x.users) * static_cast<std::size_t>(sums_of_lane * kSumPitch * 4);
  for (x.heights = 1; x.heights <= std::min(16, x.height.result); ++x.heights) {
    const int64_t rows = std::min<int64_t>(
        x.height.source, (x.heights - 1) * int64_t{x.height.step} + (x.height.kernel - 1) * x.height.apart + 1);
    const int64_t bytes = divide_up(rows * x.width.source * size + 15, 16) * 16;
    if (bytes * x.channels > static_cast<int64_t>(limits.block_memory)) break;
    place_channels(x, map, bytes);
    if (plan.by_rows) {
      const int64_t y_pitch = int64_t{plan.by_row.divisor} * (size == 4 ? 256 : 64);
      if ((x.heights + 2 * kRowMargin) * y_pitch > static_cast<int64_t>(limits.block_memory)) break;
      plan.y_pitch = to_int(y_pitch);
      plan.y_slot_bytes = (x.heights + 2 * kRowMargin) * plan.y_pitch;
    } else {
      const int64_t y_pitch = up_to(int64_t{x.heights} * x.width.result * size + 16, 16 * size);
      if (8 * y_pitch > static_cast<int64_t>(limits.block_memory)) break;
      plan.y_pitch = to_int(y_pitch);
      plan.y_slot_bytes = 8 * plan.y_pitch;
    }
    int64_t fixed = 0;
    const auto share_memory = [&](int y_slots) {
      plan.y_slots = y_slots;
      fixed = int64_t{y_slots} * plan.y_slot_bytes + 2 * kWeightMargin;
      const int64_t left = static_cast<int64_t>(limits.block_memory) - 512 - fixed;
      x.slots = to_int(std::min<int64_t>(kMostSlots, left / x.slot_bytes));
    };
    share_memory(plan.live + 3);  // y some units ahead, where x has slots enough
    if (x.slots < 4) share_memory(plan.live + 1);
    if (x.slots < 2) break;
    x.shared_bytes = std::max(static_cast<std::size_t>(fixed + int64_t{x.slots} * x.slot_bytes), sums);
    x.by_height = FastDivide(static_cast<uint32_t>(divide_up(x.height.result, x.heights)));
    const double y_bytes = 8.0 * x.heights * x.width.result * size / x.phases;
    const double copy = (static_cast<double>(x.channels * rows * x.width.source * size) + y_bytes) / 17.0;
    const double unit = std::max({copy + 600, work_of(plan, rows, size) + 600, 1300.0});
    x.depths = 0;
    for (int cuts = 1; cuts <= 32; ++cuts) {
      const double rounds = cut_depths(x, problem.batch, cuts, blocks);
      if (rounds == 0) continue;
      const double units = (x.depths - 1) * x.phases + x.depth.kernel;
      x.predicted_ms = (rounds * (units * unit + 3000) + 15000) / 1.755e6;
      if (best.x.blocks != 0 && x.predicted_ms >= best.x.predicted_ms) continue;
      best = plan;
      best.x.blocks = blocks * x.sharers;
    }
  }
}

}  // namespace

WeightPlan plan_weight(const ConvProblem& problem, const ConvConfig& config) {
  WeightPlan best{}, plan{};
  if (config.pass != ConvPass::BackwardWeight || (config.dtype != DType::Float32 && !is_half(config.dtype)))
    return best;
  const auto size = static_cast<int>(size_of(config.dtype));
  if (!describe(problem, plan.x) || plan.x.depth.kernel > kMostDepthTaps || plan.x.width.origin < -24) return best;
  plan.y_elements = problem.y_numel();
  plan.live = to_int(divide_up(plan.x.depth.kernel, plan.x.phases));
  for (const bool by_rows : {false, true}) {
    if (choose_form(plan, by_rows, size, config.alignment)) choose_items(problem, size, plan, best);
  }
  return best;
}

}  // namespace halo::cuda::conv::streams
