#include <algorithm>
#include <cmath>

#include "small_groups_limits.h"
#include "small_groups_ring.h"

namespace halo::cuda::conv::small_groups {
namespace {

/// The box of `channels` planes, or of one depth of them, that `positions` read.
GroupTile group_tile(const GroupProblem& g, const int (&positions)[3], int channels, bool whole_depth) {
  GroupTile tile{};
  for (int axis = 0; axis < 3; ++axis) {
    tile.positions[axis] = positions[axis];
    tile.extent[axis] = (positions[axis] - 1) * g.step[axis] + reach(g.taps[axis], g.phases[axis]) + 1;
  }
  if (!whole_depth) tile.extent[0] = 1;
  tile.box =
      row_box(g.source_rows, channels, tile.extent[0], tile.extent[1], tile.extent[2], int{sizeof(float)}, kGatherBank);
  return tile;
}

/// Units of all phases: each phase's taps and channels, in whole promotions.
int unit_count(const GroupProblem& g, int chunks) {
  int units = 0;
  for (int d = 0; d < g.phases[0] * chunks; ++d) {
    for (int h = 0; h < g.phases[1]; ++h) {
      for (int w = 0; w < g.phases[2]; ++w) {
        const int depths = chunks > 1 ? 1 : g.taps[0].count[d];
        const int products = depths * g.taps[1].count[h] * g.taps[2].count[w] * g.source_channels;
        units += to_int(divide_up(products, 4 * kPromoteUnits)) * kPromoteUnits;
      }
    }
  }
  return units;
}

/// Cycles of one tile where the copies of the next arrive meanwhile. Copies: 18 bytes a cycle with what is written, and
/// two and a half cycles a row.
double ring_cycles(double instructions, double bytes, double rows, double waiting_warps) {
  const double issue = instructions / 4 / 0.65 / std::min(1.0, waiting_warps / 12);
  return std::max(issue, bytes / 18 + 2.5 * rows) + 150;
}

/// Shared memory, block count and predicted time of `plan`, whose problem, tile, sets, units, warps and ring are set.
void complete(RingPlan& plan, const DeviceTraits& limits) {
  const GroupProblem& g = plan.problem;
  const GroupTile& tile = plan.tile;
  const int phases = g.phases[0] * g.phases[1] * g.phases[2];
  const int run = kSegment * g.phases[2];
  const int64_t weight_words = int64_t{plan.units} * plan.result_tiles * 32 * 2;
  const int64_t stage_words = int64_t{plan.warps} * plan.column_tiles * 8 * (plan.row_tiles * run + 4);
  const int64_t words = weight_words + 4 * plan.unit_pitch + (phases + plan.chunks + 3) / 4 * 4 + stage_words;
  plan.shared_bytes = static_cast<std::size_t>(int64_t{plan.tiles_in_ring} * tile.box.bytes + words * 4);
  const int segments_w = tile.positions[2] / kSegment;
  plan.segments = tile.positions[0] * tile.positions[1] * segments_w;
  const int segment_groups = to_int(divide_up(plan.segments, plan.row_tiles));
  const int column_groups = plan.result_tiles / plan.column_tiles;
  plan.items = segment_groups * column_groups * g.phases[0] * g.phases[1];
  plan.by_row = FastDivide(static_cast<uint32_t>(segments_w));
  plan.by_height = FastDivide(static_cast<uint32_t>(tile.positions[1]));
  plan.by_segments = FastDivide(static_cast<uint32_t>(segment_groups));
  plan.by_column = FastDivide(static_cast<uint32_t>(column_groups));
  plan.by_phase = FastDivide(static_cast<uint32_t>(g.phases[1]));
  plan.tile_count = g.batch;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t tiles = divide_up(divide_up(g.result[axis], g.phases[axis]), tile.positions[axis]);
    plan.tiles[axis] = FastDivide(static_cast<uint32_t>(tiles));
    plan.tile_count *= tiles;
  }
  const double resident = resident_blocks(limits, plan.shared_bytes, plan.warps + kRingHelpers);
  const int64_t owners = int64_t{g.groups} * plan.sets;
  const int64_t wave = std::max<int64_t>(1, int64_t(resident) * limits.multiprocessors / owners);
  plan.slots = to_int(std::min(plan.tile_count, wave));
  plan.blocks = owners * plan.slots;

  // Warp instructions of one tile, counted from the source.
  const double products = plan.row_tiles * plan.column_tiles;
  const double step = 4 + plan.row_tiles * 18 + plan.column_tiles + products * 5;
  const double stage = phases * (products * 4 * 3 + 40);
  const double write =
      g.phases[0] * g.phases[1] * (120 + plan.row_tiles * run / 32.0 * (20 + 8 * plan.column_tiles * 5));
  const double work = segment_groups * column_groups * (plan.units / 2.0 * step + stage + write);
  const double instructions = work + 300 + plan.warps * 60 + 14.0 * tile.box.rows() / 32;
  const double results = double(plan.set_results) * tile.positions[0] * tile.positions[1] * tile.positions[2] * phases;
  const double bytes = double(tile.box.bytes) * plan.chunks + results * 4.0;
  const double waiting =
      std::min(double(plan.warps), plan.chunks > 1 ? plan.items : double(plan.items) * plan.tiles_in_ring) * resident;
  const double rows = double(tile.box.rows()) * plan.chunks;
  const double cycles = ring_cycles(instructions, bytes, rows, waiting);
  const double tiles_each = double(divide_up(plan.tile_count, plan.slots));
  const double concurrent = std::max(1.0, double(plan.blocks) / limits.multiprocessors);
  const double weights = double(weight_words) / plan.warps * 2;  // cycles before the first tile
  plan.predicted_ms = 5e-3 + (tiles_each * concurrent * cycles + weights) / 1.7e6;
}

/// Calls visit(plan) for every plan of this tile that fits.
template <class Visit>
void visit_ring_tile(RingPlan plan, const DeviceTraits& limits, Visit& visit) {
  const int all_results = plan.problem.result_channels;
  for (const int sets : {1, 2, 4}) {
    if (sets > 1 && all_results <= 8 * sets) continue;
    plan.sets = sets;
    plan.set_results = to_int(divide_up(divide_up(all_results, sets), 8) * 8);
    const int result_tiles = plan.set_results / 8;
    for (const int columns : {1, 2, 4}) {
      if (columns > 1 && result_tiles < columns) continue;
      plan.column_tiles = columns;
      plan.result_tiles = to_int(divide_up(result_tiles, columns)) * columns;
      for (const int choice : {0, 1, 2, 3}) {
        plan.warps = choice % 2 == 0 ? 4 : 12;
        plan.row_tiles = choice < 2 ? 2 : 4;
        if (plan.row_tiles == 4 && columns > 1) continue;  // more sums than registers
        for (plan.tiles_in_ring = 2; plan.tiles_in_ring <= kMostRingTiles; ++plan.tiles_in_ring) {
          complete(plan, limits);
          if (plan.shared_bytes > limits.block_memory) break;
          if (plan.chunks > 1 && plan.items > plan.warps) break;
          if (plan.tile_count < kLargestExtent) visit(plan);
        }
      }
    }
  }
}

/// Calls visit(plan) for every plan that fits.
template <class Visit>
void visit_ring_plans(const ConvProblem& problem, ConvPass pass, Visit visit) {
  RingPlan plan;
  const DeviceTraits limits = device_limits();
  plan.problem = group_problem(problem, pass == ConvPass::Forward);
  const GroupProblem& g = plan.problem;

  int wanted[3];
  for (int axis = 0; axis < 3; ++axis) wanted[axis] = to_int(divide_up(g.result[axis], g.phases[axis]));
  for (const int w : {16, 32, 48, 64, 96, 128, 192, 256}) {
    if (w >= wanted[2] + 16 && w > 16) continue;
    for (const int h : {1, 2, 3, 4, 6, 8, 12, 16}) {
      if (h > wanted[1]) continue;
      for (const int d : {1, 2, 4}) {
        if (d > wanted[0] || w * h * d > 2048) continue;
        for (const int chunks : {1, g.kernel[0]}) {
          const bool chunked = chunks > 1;
          if (chunked && (d > 1 || g.phases[0] * g.phases[1] * g.phases[2] > 1)) break;
          plan.chunks = chunks;
          plan.units = unit_count(g, chunks);
          plan.unit_pitch = plan.units + kPromoteUnits;
          plan.tile = group_tile(g, {d, h, w}, g.source_channels, !chunked);
          visit_ring_tile(plan, limits, visit);
          if (g.kernel[0] == 1) break;
        }
      }
    }
  }
}

}  // namespace

RingPlan ring_plan(const ConvProblem& problem, ConvPass pass) {
  struct Last {
    ConvProblem problem;
    ConvPass pass;
    RingPlan plan;
  };
  thread_local Last last;  // dispatch asks for the same plan several times a call
  if (last.problem == problem && last.pass == pass && last.plan.tile_count > 0) return last.plan;
  RingPlan best{};
  const auto visit = [&](const RingPlan& plan) {
    if (best.blocks == 0 || plan.predicted_ms < best.predicted_ms) best = plan;
  };
  visit_ring_plans(problem, pass, visit);
  last = {problem, pass, best};
  return best;
}

}  // namespace halo::cuda::conv::small_groups
