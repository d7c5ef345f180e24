#include <algorithm>

#include "small_groups_limits.h"
#include "streams_weight.h"

namespace halo::cuda::conv::streams {
namespace {

using small_groups::device_limits;
using small_groups::divide_up;
using small_groups::to_int;

constexpr int64_t kBanks = 128;  // bytes

/// Of the time as seen on an H200 (within 20 % of 18 problems): small groups count as much too little.
constexpr double kShare = 0.65;

int64_t up_to(int64_t least, int64_t rest) { return least + ((rest - least) % kBanks + kBanks) % kBanks; }

/// Passes over shared memory of a load of x: 8 channels, at every fourth position.
int passes(const ChannelMap& map, int step, int64_t plane_bytes, int size) {
  int64_t words[32];
  int count[32] = {}, most = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const int channel = lane / 4;
    words[lane] = (channel % 4 * map.pitch + channel / 4 * map.quad_pitch + channel * plane_bytes % 16 +
                   int64_t{lane % 4} * 4 * step * size) /
                  4;
    if (std::find(words, words + lane, words[lane]) == words + lane) most = std::max(most, ++count[words[lane] % 32]);
  }
  return most;
}

/// Places runs of `bytes` in a slot, where a warp's loads meet most banks; the passes of a load.
int place(Plan& plan, int64_t bytes, int64_t plane_bytes, int size) {
  int fewest = 33;
  Plan trial = plan;
  for (int bank = 0; bank < kBanks; bank += 16) {
    for (int quad = 0; quad < kBanks; quad += 16) {
      place_channels(trial, {.pitch = bank, .quad_pitch = quad}, bytes);
      const int count = passes(trial.map, plan.width.step, plane_bytes, size);
      if (count >= fewest) continue;
      fewest = count;
      plan.map = trial.map;
      plan.slot_bytes = trial.slot_bytes;
    }
  }
  return fewest;
}

}  // namespace

WeightPlan plan_weight(const ConvProblem& problem, int element_size, int alignment) {
  WeightPlan best{}, plan{};
  Plan& x = plan.x;
  const int size = element_size;
  if (!describe(problem, x) || x.depth.kernel > kMostDepthTaps || x.width.origin < -24) return best;
  const int step = x.width.step, most_taps = step == 2 ? 7 : step == 3 ? 5 : 0;
  if (x.width.kernel > most_taps) return best;
  const DeviceTraits limits = device_limits();
  plan.y_elements = problem.y_numel();
  plan.y_whole = alignment >= 4 * size && x.width.result % 4 == 0;
  plan.width_taps = step == 2 && x.width.kernel <= 3 ? 3 : most_taps;
  plan.rows = plan.width_taps == 3 && x.height.kernel == 3 ? 3 : 1;
  plan.live = to_int(divide_up(x.depth.kernel, x.phases));
  plan.y_slots = plan.live + 1;
  const int chunks = to_int(divide_up(x.channels, 8)), owners = chunks * (x.height.kernel / plan.rows);
  const int warps = weight_warps(plan.rows, plan.width_taps, size == 2);
  if (owners >= warps) return best;
  const int segments = to_int(divide_up(x.width.result, 16));
  plan.by_row = FastDivide(static_cast<uint32_t>(segments));
  const int64_t blocks = int64_t{x.groups} * x.result_sets;
  const int64_t plane_bytes = int64_t{x.depth.source} * x.height.source * x.width.source * size;
  const int64_t most_sharers = std::max<int64_t>(1, limits.multiprocessors / blocks);
  const int tiles = (plan.rows * plan.width_taps + 1) / 2;
  const auto sums = static_cast<std::size_t>((warps - 1) * kMostDepthTaps * tiles * 4 * 32 * 4);
  for (x.heights = 1; x.heights <= std::min(16, x.height.result); ++x.heights) {
    plan.runs = x.heights * segments;
    const int64_t most = divide_up(plan.runs, (warps - 1) / owners);  // runs of a warp
    plan.splits = to_int(divide_up(plan.runs, most));
    x.users = owners * plan.splits;
    const int64_t rows = std::min<int64_t>(
        x.height.source, (x.heights - 1) * int64_t{x.height.step} + (x.height.kernel - 1) * x.height.apart + 1);
    const int64_t bytes = divide_up(rows * x.width.source * size + 15, 16) * 16;
    if (bytes * x.channels > static_cast<int64_t>(limits.block_memory)) break;
    const int load = place(x, bytes, plane_bytes, size);
    plan.y_pitch = to_int(up_to(int64_t{x.heights} * x.width.result * size + 16, 16 * size));
    plan.y_slot_bytes = 8 * plan.y_pitch;
    const int64_t fixed = int64_t{plan.y_slots} * plan.y_slot_bytes + 2 * kWeightMargin;
    const int64_t left = static_cast<int64_t>(limits.block_memory) - 512 - fixed;
    x.slots = to_int(std::min<int64_t>(kMostSlots, left / x.slot_bytes));
    if (x.slots < 2) break;
    x.shared_bytes = std::max(static_cast<std::size_t>(fixed + int64_t{x.slots} * x.slot_bytes), sums);
    const int64_t height_blocks = divide_up(x.height.result, x.heights);
    x.by_height = FastDivide(static_cast<uint32_t>(height_blocks));
    int last_depths = 0;
    for (int cuts = 1; cuts <= 32; ++cuts) {
      x.depths = to_int(divide_up(x.depth.result, cuts));
      if (x.depths == last_depths) continue;
      last_depths = x.depths;
      const int64_t depth_blocks = divide_up(x.depth.result, x.depths);
      const int64_t items = problem.batch * height_blocks * depth_blocks;
      if (items >= (int64_t{1} << 30)) continue;
      x.by_depth = FastDivide(static_cast<uint32_t>(depth_blocks));
      x.items = to_int(items);
      x.sharers = to_int(std::min(items, most_sharers));
      const double rounds = static_cast<double>(divide_up(items, x.sharers)) *
                            std::max(1.0, static_cast<double>(blocks) / limits.multiprocessors);
      const double units = (x.depths - 1) * x.phases + x.depth.kernel;
      const double y_bytes = 8.0 * x.heights * x.width.result * size / x.phases;
      const double copy = (static_cast<double>(x.channels * rows * x.width.source * size) + y_bytes) / 17.0;
      const double live = static_cast<double>(x.depth.kernel) / x.phases;
      const int words = 3 * x.width.step + plan.width_taps;
      const double of_x = plan.rows * words * (size == 4 ? 3.0 : 1.5) + 30;
      const double of_y = live * tiles * (size == 4 ? 10 : 5) + 20;
      const double warp_runs = static_cast<double>(most) * x.users;
      const double work =
          warp_runs * std::max((of_x + of_y) * (size == 4 ? 0.88 : 0.58), 1.0 * plan.rows * words * load);
      const double cycles = rounds * (units * (std::max(copy, work) + 1100) + 3000) + 10000;
      x.predicted_ms = kShare * cycles / 1.755e6;
      if (best.x.blocks != 0 && x.predicted_ms >= best.x.predicted_ms) continue;
      best = plan;
      best.x.blocks = blocks * x.sharers;
    }
  }
  return best;
}

}  // namespace halo::cuda::conv::streams
