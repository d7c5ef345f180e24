#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "limits.h"
#include "small_groups.h"

namespace halo::cuda::conv::small_groups {
namespace {

/// As kGatherBank, where lanes are 4 positions of 8 channels.
constexpr int kWeightBank = 16;
constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;

/// Threads own `positions` and read the box of `channels` planes; `bank`: see row_box.
GroupTile group_tile(const GroupProblem& g, const int (&positions)[3], int channels, std::size_t element_size,
                     int bank) {
  GroupTile tile{};
  for (int axis = 0; axis < 3; ++axis) {
    tile.positions[axis] = positions[axis];
    tile.extent[axis] = (positions[axis] - 1) * g.step[axis] + reach(g.taps[axis], g.phases[axis]) + 1;
  }
  tile.box = row_box(g.source_rows, channels, tile.extent[0], tile.extent[1], tile.extent[2],
                     static_cast<int>(element_size), bank);
  return tile;
}

/// The tile of the upstream gradient that goes with positions of `x`.
GroupTile gradient_tile(const GroupProblem& g, const GroupTile& x, int channels, std::size_t element_size) {
  GroupTile y{};
  for (int axis = 0; axis < 3; ++axis) y.extent[axis] = y.positions[axis] = x.positions[axis];
  y.box = row_box(g.result_rows, channels, y.extent[0], y.extent[1], y.extent[2], static_cast<int>(element_size),
                  kWeightBank);
  return y;
}

/// Warp instructions to fill a tile: half a warp instruction an instruction, the rest by the copy engine.
double fill_instructions(const GroupTile& tile) { return 1000 + 14.0 * tile.box.rows(); }

/// Cycles for one tile. Fitted to 1,000 plans on an H200: the copies of a tile hardly overlap the products of another,
/// since the same warps issue both; a single tile in shared memory also waits for its first row.
double tile_cycles(double instructions, double bytes, double resident, int warps, int buffers) {
  const double issue = instructions / 4 / 0.7;
  const double busy = std::min(1.0, resident * warps / 16), alone = std::min(1.0, warps / 16.0);
  const double memory = bytes / 12;
  const double together = issue / busy + memory;
  return buffers == 2 ? together : std::max(together, (issue / alone + memory + 1000) / resident);
}

/// Shared memory, block count and predicted time of `plan`, whose problem, tile, warps and buffers are set.
void complete(GatherPlan& plan, const DeviceTraits& limits, std::size_t element_size, bool split) {
  const GroupProblem& g = plan.problem;
  const GroupTile& tile = plan.tile;
  const int taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
  const int phases = g.phases[0] * g.phases[1] * g.phases[2];
  plan.units = taps * plan.channel_blocks + phases;  // each phase may need one to be even
  plan.units += plan.units % 2;
  const int run = kSegment * g.phases[2];
  const int64_t weight_words = int64_t{taps * plan.channel_blocks + 1} * plan.result_tiles * 32 * (split ? 2 : 1);
  const int64_t stage_words = int64_t{plan.warps} * plan.column_tiles * 8 * (plan.row_tiles * run + 4);
  const int64_t words = weight_words + 2 * plan.units + (phases + 3) / 4 * 4 + stage_words;
  plan.shared_bytes = static_cast<std::size_t>(int64_t{plan.buffers} * tile.box.bytes + words * 4);
  const int groups_w = tile.positions[2] / (kSegment * plan.row_tiles);
  plan.row_groups = tile.positions[0] * tile.positions[1] * groups_w;
  plan.by_row = FastDivide(static_cast<uint32_t>(groups_w));
  plan.by_height = FastDivide(static_cast<uint32_t>(tile.positions[1]));
  plan.by_depth = FastDivide(static_cast<uint32_t>(tile.positions[0]));
  plan.by_column = FastDivide(static_cast<uint32_t>(plan.result_tiles / plan.column_tiles));
  plan.by_phase = FastDivide(static_cast<uint32_t>(g.phases[1]));
  plan.tile_count = g.batch;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t tiles = divide_up(divide_up(g.result[axis], g.phases[axis]), tile.positions[axis]);
    plan.tiles[axis] = FastDivide(static_cast<uint32_t>(tiles));
    plan.tile_count *= tiles;
  }
  const double resident = resident_blocks(limits, plan.shared_bytes, plan.warps);
  const int64_t wave = std::max<int64_t>(1, int64_t(resident) * limits.multiprocessors / g.groups);
  plan.slots = to_int(std::min(plan.tile_count, wave));
  plan.blocks = int64_t{g.groups} * plan.slots;

  // Warp instructions of one tile, counted from the source.
  const int column_groups = plan.result_tiles / plan.column_tiles;
  const double products = plan.row_tiles * plan.column_tiles;
  const double step =
      4 + plan.row_tiles * (split ? 16 : 4) + plan.column_tiles * (split ? 8 : 2) + products * (split ? 5 : 3);
  const double stage = phases * (products * 4 * 3 + 30);
  const double write = g.phases[0] * g.phases[1] * (60 + plan.row_tiles * run / 32.0 * (8 + 8 * plan.column_tiles * 5));
  const double items = double(plan.row_groups) * column_groups * g.phases[0] * g.phases[1];
  const double busy = items / (std::ceil(items / plan.warps) * plan.warps);
  const double work = plan.row_groups * column_groups * (plan.units / 2.0 * step + stage + write + 40);
  const double instructions = fill_instructions(tile) + work / busy;
  const double results = double(g.result_channels) * tile.positions[0] * tile.positions[1] * tile.positions[2] * phases;
  const double bytes = tile.box.bytes + results * double(element_size);
  const double cycles = tile_cycles(instructions, bytes, resident, plan.warps, plan.buffers);
  const double tiles_each = double(divide_up(plan.tile_count, plan.slots));
  const double concurrent = std::max(1.0, double(plan.blocks) / limits.multiprocessors);
  const double weights = double(weight_words) / plan.warps * 2;  // cycles before the first tile
  plan.predicted_ms = 5e-3 + (tiles_each * concurrent * cycles + weights) / 1.7e6;
}

/// As for GatherPlan.
void complete(WeightPlan& plan, const DeviceTraits& limits, bool split) {
  const GroupProblem& g = plan.problem;
  const int64_t tile_bytes = plan.x.box.bytes + plan.y.box.bytes;
  const int64_t sum_words = int64_t{plan.warps} * plan.row_tiles * plan.column_tiles * 128;
  plan.shared_bytes = static_cast<std::size_t>(std::max(tile_bytes * plan.buffers, sum_words * 4));
  plan.tile_count = g.batch;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t tiles = divide_up(g.result[axis], plan.y.positions[axis]);
    plan.tiles[axis] = FastDivide(static_cast<uint32_t>(tiles));
    plan.tile_count *= tiles;
  }
  plan.by_row = FastDivide(static_cast<uint32_t>(plan.y.positions[2] / 8));
  plan.by_plane = FastDivide(static_cast<uint32_t>(plan.y.positions[1]));
  const int items = plan.row_groups * plan.column_groups;
  plan.position_splits = 1;
  while (plan.position_splits < plan.warps && items * plan.position_splits * 2 <= plan.warps) plan.position_splits *= 2;
  plan.item_sets = to_int(divide_up(items, plan.warps / plan.position_splits));
  plan.sets = plan.item_sets * (g.source_channels / plan.set_channels);

  const double resident = resident_blocks(limits, plan.shared_bytes, plan.warps);
  // One wave of blocks, unless float32 sums would become too long: kAdditions a lane stay below the bound.
  constexpr int64_t kAdditions = 512;
  const int64_t positions = int64_t{plan.y.positions[0]} * plan.y.positions[1] * plan.y.positions[2];
  const int64_t additions = divide_up(positions, 8 * 4 * plan.position_splits);
  const int64_t wave =
      std::max<int64_t>(1, int64_t(resident) * limits.multiprocessors / (int64_t{g.groups} * plan.sets));
  const int64_t needed = divide_up(plan.tile_count * additions, kAdditions);
  const int64_t weights = int64_t{g.groups} * g.result_channels * g.source_channels * (plan.rows / plan.set_channels);
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(kWorkspaceCap / sizeof(double)) / weights);
  plan.splits = to_int(std::min({std::max(wave, needed), plan.tile_count, most}));
  plan.blocks = int64_t{g.groups} * plan.sets * plan.splits;

  const double fill = fill_instructions(plan.x) + fill_instructions(plan.y);
  const double products = plan.row_tiles * plan.column_tiles;
  const double step =
      14 + plan.row_tiles * (split ? 16 : 4) + plan.column_tiles * (split ? 8 : 2) + products * (split ? 4 : 2);
  const double busy = double(items) / (double(plan.item_sets) * plan.warps / plan.position_splits);
  const double work = items * (double(positions) / 8) * step / plan.item_sets / busy;
  const auto bytes = double(tile_bytes);
  const double cycles = tile_cycles(fill + work, bytes, resident, plan.warps, plan.buffers);
  const double concurrent = std::max(1.0, double(plan.blocks) / limits.multiprocessors);
  plan.predicted_ms = 9e-3 + double(divide_up(plan.tile_count, plan.splits)) * concurrent * cycles / 1.7e6;
}

/// Calls visit(plan) for every plan that fits.
template <class Visit>
void visit_gather_plans(const ConvProblem& problem, ConvPass pass, std::size_t element_size, bool split, Visit visit) {
  GatherPlan plan;
  const DeviceTraits limits = device_limits();
  plan.problem = group_problem(problem, pass == ConvPass::Forward);
  const GroupProblem& g = plan.problem;
  plan.channel_blocks = to_int(divide_up(g.source_channels, kChannelBlock));
  const int result_tiles = to_int(divide_up(g.result_channels, 8));
  plan.column_tiles = result_tiles <= 2 ? result_tiles : 4;
  plan.result_tiles = to_int(divide_up(result_tiles, plan.column_tiles)) * plan.column_tiles;

  int wanted[3];
  for (int axis = 0; axis < 3; ++axis) wanted[axis] = to_int(divide_up(g.result[axis], g.phases[axis]));
  for (const int w : {32, 64, 96, 128, 192, 256}) {
    if (w >= wanted[2] + 32 && w > 32) continue;
    for (const int h : {1, 2, 3, 4, 6, 8, 12, 16}) {
      if (h > wanted[1]) continue;
      for (const int d : {1, 2, 4}) {
        if (d > wanted[0] || w * h * d > 2048) continue;
        plan.tile = group_tile(g, {d, h, w}, plan.channel_blocks * kChannelBlock, element_size, kGatherBank);
        for (int choice = 0; choice < 12; ++choice) {
          plan.warps = 4 << choice / 4;
          plan.buffers = choice & 1 ? 2 : 1;
          plan.row_tiles = choice & 2 ? 4 : 2;
          if (plan.row_tiles == 4 && plan.column_tiles == 4) continue;  // more sums than registers
          if (w % (plan.row_tiles * kSegment) != 0) continue;
          complete(plan, limits, element_size, split);
          if (plan.shared_bytes <= limits.block_memory && plan.tile_count < kLargestExtent) visit(plan);
        }
      }
    }
  }
}

/// As visit_gather_plans.
template <class Visit>
void visit_weight_plans(const ConvProblem& problem, std::size_t element_size, bool split, Visit visit) {
  WeightPlan plan;
  const DeviceTraits limits = device_limits();
  plan.problem = group_problem(problem, true);
  const GroupProblem& g = plan.problem;
  const int columns = to_int(divide_up(g.result_channels, 8));
  plan.column_tiles = columns <= 2 ? columns : 4;
  plan.row_tiles = plan.column_tiles == 1 ? 7 : plan.column_tiles == 2 ? 4 : 2;
  plan.column_groups = to_int(divide_up(columns, plan.column_tiles));

  for (const int w : {8, 16, 24, 32, 48, 64, 96, 128, 256}) {
    if (w >= g.result[2] + 16 && w > 8) continue;
    for (const int h : {1, 2, 3, 4, 6, 8, 12, 16}) {
      if (h > g.result[1]) continue;
      for (const int d : {1, 2, 4}) {
        if (d > g.result[0] || w * h * d > 2048) continue;
        for (plan.set_channels = g.source_channels;; plan.set_channels /= 2) {
          plan.x = group_tile(g, {d, h, w}, plan.set_channels, element_size, kWeightBank);
          plan.y = gradient_tile(g, plan.x, plan.column_groups * plan.column_tiles * 8, element_size);
          plan.rows = plan.set_channels * to_int(problem.taps());
          plan.row_groups = to_int(divide_up(plan.rows, plan.row_tiles * 16));
          for (int choice = 0; choice < 4; ++choice) {
            plan.buffers = choice & 1 ? 2 : 1;
            plan.warps = choice & 2 ? 16 : 8;
            complete(plan, limits, split);
            const bool fits = plan.shared_bytes <= limits.block_memory && plan.blocks <= kMostBlocks &&
                              plan.tile_count < kLargestExtent;
            if (fits) visit(plan);
          }
          if (plan.set_channels % 2 != 0 || plan.set_channels <= 2) break;
        }
      }
    }
  }
}

/// Keeps the plan with the least predicted time.
template <class Plan>
struct Best {
  Plan plan{};
  void operator()(const Plan& other) {
    if (plan.blocks == 0 || other.predicted_ms < plan.predicted_ms) plan = other;
  }
};

bool fits(const ConvProblem& problem, const ConvConfig& config) {
  return (config.dtype == DType::Float32 || is_half(config.dtype)) && small_groups_fit(problem) &&
         few_channels(problem);
}

/// Float32 in two TF32 parts.
bool is_split(const ConvConfig& config) {
  return config.dtype == DType::Float32 && config.precision == Precision::Float32;
}

/// What an H200 takes; `ms` is a plan's own count, which ranks plans, `seen` its share. Of four channels a group and
/// fewer it was too fast by 1.2, in half types by 1.5.
double predict(const ConvProblem& problem, const ConvConfig& config, double ms, double seen) {
  const std::size_t size = size_of(config.dtype);
  if (problem.is_depthwise()) return 4e-3 + problem.bytes(size) / 1e8;  // most of each product is empty
  const bool fewest = std::max(problem.in_channels_per_group(), problem.out_channels_per_group()) <= 4;
  const double share = size == 2 ? (fewest ? 1.5 : 1.0) : seen * (fewest ? 1.2 : 1.0);
  return std::max(share * ms, 4e-3 + problem.bytes(size) / 3.6e9);
}

}  // namespace

GatherPlan gather_plan(const ConvProblem& problem, const ConvConfig& config) {
  Best<GatherPlan> best;
  if (!fits(problem, config)) return best.plan;
  visit_gather_plans(problem, config.pass, size_of(config.dtype), is_split(config), std::ref(best));
  best.plan.predicted_ms = predict(problem, config, best.plan.predicted_ms, 0.9);
  return best.plan;
}

WeightPlan weight_plan(const ConvProblem& problem, const ConvConfig& config) {
  Best<WeightPlan> best;
  if (!fits(problem, config)) return best.plan;
  visit_weight_plans(problem, size_of(config.dtype), is_split(config), std::ref(best));
  best.plan.predicted_ms = predict(problem, config, best.plan.predicted_ms, 0.84);
  return best.plan;
}

}  // namespace halo::cuda::conv::small_groups
