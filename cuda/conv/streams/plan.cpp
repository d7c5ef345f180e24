#include <algorithm>
#include <numeric>
#include <set>

#include "../small_groups/limits.h"
#include "streams.h"

namespace halo::cuda::conv::streams {
namespace {

using small_groups::device_limits;
using small_groups::GroupProblem;

constexpr int64_t kGranule = 16;
constexpr int kBanks = 128;  // bytes that meet all
constexpr int64_t kLargestItems = int64_t{1} << 30;
constexpr int kMostBehind = 8192;  // bytes
// As seen on an H200. A warp needs some clocks for a product, and warps of a scheduler wait for each other.
constexpr double kClocksPerMs = 1.755e6, kBytesPerClock = 16.2;

Axis axis_of(const GroupProblem& g, int i) {
  const int apart = g.kernel[i] > 1 ? g.taps[i].offset[0][1] : 1;
  return {g.source[i], g.result[i], g.kernel[i], g.step[i], apart, g.origin[i]};
}

/// Passes over shared memory of a load of operand A: 8 positions, `apart` elements from each other, of 4 channels.
int passes(const ChannelMap& map, int apart, int64_t plane_bytes, int size) {
  std::set<int64_t> words;
  int count[kBanks / 4] = {}, most = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const int channel = lane % 2 * map.odd + lane % 4 / 2 * map.high;
    const int64_t at = channel % 4 * map.pitch + channel / 4 * map.quad_pitch + channel * plane_bytes % kGranule +
                       int64_t{lane / 4} * apart * size;
    if (words.insert(at / 4).second) most = std::max(most, ++count[at / 4 % (kBanks / 4)]);
  }
  return most;
}

/// The map whose loads meet most banks, its pitches modulo kBanks.
ChannelMap choose_map(const Plan& plan, int size) {
  constexpr ChannelMap kMaps[] = {{1, 2, 4, 8}, {4, 1, 2, 8}, {4, 8, 1, 2}};
  const int64_t plane_bytes = int64_t{plan.depth.source} * plan.height.source * plan.width.source * size;
  constexpr int kApart = 1 << 16;  // channels do not overlap
  ChannelMap best;
  int fewest = 33;
  const int apart = kShapes[plan.shape].lane_apart(size) * plan.width.step;
  for (const ChannelMap& candidate : kMaps) {
    if (candidate.chunk == 2 && plan.channels <= 8) continue;
    for (int bank = 0; bank < kBanks; bank += kGranule) {
      for (int quad = 0; quad < kBanks; quad += kGranule) {
        ChannelMap map = candidate;
        map.pitch = kApart + bank;
        map.quad_pitch = 8 * kApart + quad;
        const int count = passes(map, apart, plane_bytes, size);
        if (count < fewest) fewest = count, best = map;
      }
    }
  }
  return best;
}

}  // namespace

void place_channels(Plan& plan, const ChannelMap& map, int64_t bytes) {
  const auto up_to = [](int64_t least, int rest) {
    return to_int(least + ((rest - least) % kBanks + kBanks) % kBanks);
  };
  plan.map = map;
  plan.map.pitch = up_to(bytes, map.pitch);
  plan.map.quad_pitch = up_to(4 * plan.map.pitch, map.quad_pitch);
  plan.slot_bytes = to_int(divide_up(divide_up(plan.channels, 4) * plan.map.quad_pitch, kBanks) * kBanks);
}

double cut_depths(Plan& plan, int64_t batch, int64_t cuts, int64_t owners) {
  const int depths = to_int(divide_up(plan.depth.result, cuts));
  if (depths == plan.depths) return 0;
  plan.depths = depths;
  const int64_t depth_blocks = divide_up(plan.depth.result, depths);
  const int64_t items = batch * plan.by_height.divisor * depth_blocks;
  if (items >= kLargestItems) return 0;
  const int64_t multiprocessors = device_limits().multiprocessors;
  plan.by_depth = FastDivide(static_cast<uint32_t>(depth_blocks));
  plan.items = to_int(items);
  plan.sharers = to_int(std::min(items, std::max<int64_t>(1, multiprocessors / owners)));
  return static_cast<double>(divide_up(items, plan.sharers)) *
         std::max(1.0, static_cast<double>(owners) / static_cast<double>(multiprocessors));
}

bool describe(const ConvProblem& problem, Plan& plan) {
  if (!device_limits().is_hopper() || !small_groups::small_groups_fit(problem)) return false;
  const int64_t in = problem.in_channels_per_group(), out = problem.out_channels_per_group();
  if (std::max(in, out) > 16 || std::min(in, out) < 3) return false;
  const GroupProblem g = small_groups::group_problem(problem, true);
  plan.groups = g.groups;
  plan.channels = g.source_channels;
  plan.results = g.result_channels;
  plan.x_elements = g.source_rows.elements;
  const bool flat = g.source[0] == 1 && g.result[0] == 1 && g.kernel[0] == 1;
  plan.depth = axis_of(g, flat ? 1 : 0);
  if (!flat) plan.height = axis_of(g, 1);
  plan.width = axis_of(g, 2);
  if (plan.width.apart != 1) return false;
  const Axis& d = plan.depth;
  plan.apart = d.kernel > 1 ? std::gcd(d.step, d.apart) : d.step;
  plan.phases = d.step / plan.apart;
  if ((d.kernel > 1 && d.apart != plan.apart) || d.kernel < plan.phases) return false;
  plan.result_sets = to_int(divide_up(plan.results, 8));
  return true;
}

namespace {

/// The shape of kShapes; false where none fits.
bool choose_shape(Plan& plan) {
  const auto fits = [&](const Shape& s) {
    return s.step == plan.width.step && s.taps >= plan.width.kernel && 8 * s.chunks >= plan.channels &&
           s.live * plan.phases >= plan.depth.kernel;
  };
  const auto* const found = std::find_if(std::begin(kShapes), std::end(kShapes), fits);
  if (found == std::end(kShapes)) return false;
  plan.shape = to_int(found - std::begin(kShapes));
  return true;
}

/// Sets `best` to the plan with the least predicted time, if `plan` has one with less.
void choose_items(const ConvProblem& problem, int size, Plan& plan, Plan& best) {
  const DeviceTraits limits = device_limits();
  const Shape& shape = kShapes[plan.shape];
  const int tiles = shape.tiles(), of_row = shape.products(size) * shape.chunks;
  plan.row_warps = to_int(divide_up(plan.width.result, 16 * tiles));
  const ChannelMap map = choose_map(plan, size);
  const int64_t owners = int64_t{plan.groups} * plan.result_sets;
  plan.weight_depths = std::max(plan.depth.kernel, plan.phases * (shape.live - 1));
  plan.weight_bytes = plan.weight_depths * plan.height.kernel * of_row * (size == 4 ? 512 : 256);
  // Lanes read columns in front of and behind a row.
  const Axis& w = plan.width;
  const int first_column = std::min(0, w.result - 16 * tiles) * w.step + w.origin;
  const int behind =
      std::max(0, (w.result - 1) * w.step + w.origin + (size == 4 ? 1 : 2) * shape.products(size) - w.source + 1) *
      size;
  if (-first_column * size > plan.weight_bytes || behind > kMostBehind) return;
  const auto fixed_bytes = static_cast<std::size_t>(plan.weight_bytes) + static_cast<std::size_t>(behind);
  for (plan.heights = 1; plan.heights <= plan.height.result; ++plan.heights) {
    plan.users = plan.heights * plan.row_warps;
    if (plan.users > shape.users()) break;
    const int64_t reach =
        (plan.heights - 1) * int64_t{plan.height.step} + (plan.height.kernel - 1) * int64_t{plan.height.apart} + 1;
    const int64_t row_bytes = std::min<int64_t>(plan.height.source, reach) * plan.width.source * size;
    const int64_t bytes = divide_up(row_bytes + kGranule - size, kGranule) * kGranule;
    if (2 * bytes * plan.channels + static_cast<int64_t>(fixed_bytes) > static_cast<int64_t>(limits.block_memory))
      break;
    place_channels(plan, map, bytes);
    plan.slots = std::min<int>(
        kMostSlots, static_cast<int>((limits.block_memory - fixed_bytes) / static_cast<std::size_t>(plan.slot_bytes)));
    if (plan.slots < 2) continue;
    plan.shared_bytes = static_cast<std::size_t>(plan.slots * plan.slot_bytes) + fixed_bytes;
    plan.by_height = FastDivide(static_cast<uint32_t>(divide_up(plan.height.result, plan.heights)));
    plan.depths = 0;
    for (int64_t cuts = 1; cuts <= 16; ++cuts) {
      const double rounds = cut_depths(plan, problem.batch, cuts, owners);
      if (rounds == 0) continue;
      const double units = (plan.depths - 1) * plan.phases + plan.depth.kernel;
      const double copy = static_cast<double>(plan.channels * row_bytes) / kBytesPerClock;
      const double product = std::max(size == 4 ? 260.0 : 220.0, (size == 2             ? 27.0
                                                                  : shape.windows(size) ? 33.0
                                                                                        : 38.0) *
                                                                     tiles * plan.depth.kernel / plan.phases *
                                                                     double(divide_up(plan.users, 4)));
      const double work = 600 + plan.height.kernel * of_row * product;
      const double cycles = rounds * (units * std::max(copy, work) + 3000) + 8000;
      plan.predicted_ms = cycles / kClocksPerMs;
      if (best.blocks != 0 && plan.predicted_ms >= best.predicted_ms) continue;
      best = plan;
      best.blocks = owners * plan.sharers;
    }
  }
}

}  // namespace

Plan plan_gather(const ConvProblem& problem, const ConvConfig& config) {
  Plan best{}, plan{};
  const bool storage = config.dtype == DType::Float32 || is_half(config.dtype);
  if (config.pass != ConvPass::Forward || config.activation.kind != ActivationKind::None || !storage) return best;
  const auto size = static_cast<int>(size_of(config.dtype));
  if (describe(problem, plan) && choose_shape(plan)) choose_items(problem, size, plan, best);
  return best;
}

}  // namespace halo::cuda::conv::streams
