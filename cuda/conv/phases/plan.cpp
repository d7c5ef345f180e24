#include <algorithm>
#include <vector>

#include "../small_groups/limits.h"
#include "phases.h"

namespace halo::cuda::conv::phases {
namespace {

using small_groups::GroupProblem;

constexpr int kMostChannels = 16;
constexpr int64_t kLargestPlane = int64_t{1} << 26;

struct Window {
  int start;
  uint32_t taps = 0;
  int shifts = 0;
  int8_t tap[kTapBits] = {};
};

/// Windows that cover all taps of the width. `aligned`: they start at multiples of four.
std::vector<Window> windows_of(const GroupProblem& p, bool aligned) {
  const small_groups::AxisTaps& axis = p.taps[2];
  std::vector<Window> windows;
  for (int from = 0;;) {
    int first = -1;
    const auto for_each_tap = [&](const auto& f) {
      for (int phase = 0; phase < p.phases[2]; ++phase) {
        for (int i = 0; i < axis.count[phase]; ++i) {
          if (axis.offset[phase][i] >= from) f(phase, axis.offset[phase][i], axis.tap[phase][i]);
        }
      }
    };
    for_each_tap([&](int, int offset, int) { first = first < 0 ? offset : std::min(first, offset); });
    if (first < 0) return windows;
    Window window{aligned ? first / 4 * 4 : first};
    for_each_tap([&](int phase, int offset, int tap) {
      const int shift = offset - window.start;
      if (shift >= kShifts) return;
      const int place = shift * kMostPhases + p.phases[2] - 1 - phase;
      window.taps |= 1u << place;
      window.shifts = std::max(window.shifts, shift + 1);
      window.tap[place] = static_cast<int8_t>(tap);
    });
    from = window.start + kShifts;
    windows.push_back(window);
  }
}

/// Source rows that phases of depth and height in [first, last) read, in the order of the sum.
struct SourceRow {
  int depth, height, phases = 0, tap[kMostRows] = {};
};
std::vector<SourceRow> rows_of(const GroupProblem& p, int first, int last) {
  std::vector<SourceRow> rows;
  for (int outer = first; outer < last; ++outer) {
    const int d = outer / p.phases[1], h = outer % p.phases[1];
    for (int i = 0; i < p.taps[0].count[d]; ++i) {
      for (int j = 0; j < p.taps[1].count[h]; ++j) {
        const int depth = p.taps[0].offset[d][i], height = p.taps[1].offset[h][j];
        auto row = std::find_if(rows.begin(), rows.end(),
                                [&](const SourceRow& r) { return r.depth == depth && r.height == height; });
        if (row == rows.end()) row = rows.insert(row, SourceRow{.depth = depth, .height = height});
        row->phases |= 1 << (outer - first);
        row->tap[outer - first] = p.taps[0].tap[d][i] * p.tap_pitch[0] + p.taps[1].tap[h][j] * p.tap_pitch[1];
      }
    }
  }
  return rows;
}

bool is_held(const SourceRow& row, const Plan& plan) {
  return std::any_of(plan.sources, plan.sources + plan.source_count,
                     [&](const Source& s) { return s.depth == row.depth && s.height == row.height; });
}

/// The source of a row in eight channels, a new one if there is none yet.
int source_of(const SourceRow& row, int channel, int64_t offset, Plan& plan) {
  for (int i = 0; i < plan.source_count; ++i) {
    const Source& s = plan.sources[i];
    if (s.depth == row.depth && s.height == row.height && s.channel == channel) return i;
  }
  plan.sources[plan.source_count] = {offset, row.depth, row.height, channel, 0};
  return plan.source_count++;
}

/// Where a warp has its sources: so that lanes that read together meet different banks.
void place_sources(const std::vector<Window>& windows, int size, Plan& plan) {
  // Those of kMiddle begin anywhere in four positions, others with one.
  const bool vectors = plan.lane_positions == kWide;
  plan.first_width = vectors ? windows.front().start : -(((plan.origin[2] % 4) + 4) % 4);
  const int last = windows.back().start + windows.back().shifts - 1;
  plan.fours = to_int(divide_up(last - plan.first_width + plan.positions, 4));
  const int four = 4 * size, line = 128 / four;
  plan.pitch = (to_int(divide_up(plan.fours - 1, line)) * line + 1) * four;
  plan.pair_pitch = size == 4 ? 2 * four : 6 * four;
  if (!vectors) {
    const int bank = size == 4 ? 64 : 32;  // two ways, which is the least of float32, or one
    plan.pitch = to_int(divide_up(plan.fours * four - bank, 128)) * 128 + bank;
    plan.pair_pitch = 0;
  }
  plan.second = 4 * plan.pitch + plan.pair_pitch;
  for (int i = 0; i < plan.source_count; ++i) plan.sources[i].shared = i * 2 * plan.second;
  plan.sources_bytes = plan.source_count * 2 * plan.second + four;
}

/// The units of all rounds; false where they are too many.
bool list_units(const GroupProblem& p, const std::vector<Window>& windows, int size, Plan& plan) {
  const int outer_phases = p.phases[0] * p.phases[1], at_once = rows_at_once(p.phases[2]);
  const int last_channel = std::max(0, p.source_channels - kSourceChannels);
  int source[kMostUnits];
  plan.rounds = to_int(divide_up(outer_phases, at_once));
  plan.shifts = 2;
  for (int round = 0; round < plan.rounds; ++round) {
    plan.first_unit[round] = plan.unit_count;
    std::vector<SourceRow> rows = rows_of(p, round * at_once, std::min(outer_phases, (round + 1) * at_once));
    // Those that a round before has read first: the sooner can they be replaced.
    std::stable_partition(rows.begin(), rows.end(), [&](const SourceRow& row) { return is_held(row, plan); });
    for (const SourceRow& row : rows) {
      for (int channel = 0; channel < p.source_channels; channel += kSourceChannels) {
        const int first = std::min(channel, last_channel);
        const int64_t offset = (first * p.source_rows.plane_pitch + row.depth * p.source_rows.outer_pitch +
                                row.height * p.source_rows.inner_pitch) *
                               size;
        if (plan.unit_count + std::ssize(windows) > kMostUnits) return false;
        const int own = source_of(row, first, offset, plan);
        for (const Window& window : windows) {
          Unit& unit = plan.units[plan.unit_count];
          unit.depth = row.depth;
          unit.height = row.height;
          unit.width = window.start;
          unit.offset = offset + window.start * size;
          source[plan.unit_count++] = own;
          unit.taps = window.taps | static_cast<uint32_t>(row.phases) << kTapBits;
          if (window.shifts > 2) plan.shifts = 4;
          for (int at = 0; at < kMostRows * kTapBits; ++at) {
            const int r = at / kTapBits, place = at % kTapBits;
            if ((unit.taps >> (kTapBits + r) & unit.taps >> place & 1) == 0) continue;
            if (plan.fragments == kMostFragments) return false;
            plan.fragment[plan.fragments++] = {static_cast<int16_t>(row.tap[r] + window.tap[place]),
                                               static_cast<int8_t>(first), static_cast<int8_t>(channel - first)};
          }
        }
      }
    }
  }
  plan.first_unit[plan.rounds] = plan.unit_count;
  if (!plan.aligned || plan.lane_positions == kNarrow) return true;
  place_sources(windows, size, plan);
  plan.ahead = plan.unit_count;
  for (int u = 0; u < plan.unit_count; ++u) {
    Unit& unit = plan.units[u];
    unit.shared = plan.sources[source[u]].shared + (unit.width - plan.first_width) * size;
    const int* const first = std::find(source, source + plan.unit_count, source[u]);
    const bool last = std::find(source + u + 1, source + plan.unit_count, source[u]) == source + plan.unit_count;
    unit.refill = last ? source[u] : -1;
    if (last) plan.ahead = std::min(plan.ahead, plan.unit_count - 1 - u + to_int(first - source));
  }
  return plan.fours <= kSourceFours;
}

bool fits(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardInput || !small_groups::small_groups_fit(problem)) return false;
  if (config.dtype != DType::Float32 && !is_half(config.dtype)) return false;
  const int64_t channels[2] = {problem.in_channels_per_group(), problem.out_channels_per_group()};
  const int64_t stride = std::max({problem.stride[0], problem.stride[1], problem.stride[2]});
  return std::max(channels[0], channels[1]) <= kMostChannels && std::min(channels[0], channels[1]) > 2 && stride > 1 &&
         stride <= kMostPhases;
}

/// Blocks that share a group: so that the last wave of them all is nearly full.
int64_t blocks_of_group(int64_t groups, int64_t most, int64_t multiprocessors) {
  constexpr double kStart = 0.02;  // of a block's time where a group has one
  int64_t best = 1;
  double least = 0;
  for (int64_t blocks = 1; blocks <= std::min(most, multiprocessors); ++blocks) {
    const auto waves = static_cast<double>(divide_up(groups * blocks, multiprocessors));
    const double cost = waves * (1.0 / static_cast<double>(blocks) + kStart);
    if (blocks == 1 || cost < least) best = blocks, least = cost;
  }
  return best;
}

/// Bytes, and on top what a multiprocessor needs for an item, as seen on an H200.
double predict(const ConvProblem& problem, const Plan& plan, int size) {
  const bool narrow = plan.lane_positions == kNarrow;
  const double bytes_per_ms = narrow ? 3e9 : 4e9;
  const double unit = narrow ? (size == 4 ? 10.0 : 8.0) : (size == 4 ? 20.0 : 12.0);  // ns
  const double fragment = narrow ? (size == 4 ? 6.0 : 3.0) : (size == 4 ? 13.0 : 7.5);
  const double item = 1e-6 * (plan.unit_count * unit + plan.fragments * fragment) * plan.column_tiles;
  const double items = static_cast<double>(plan.items) * plan.groups / small_groups::device_limits().multiprocessors;
  return 4e-3 + problem.bytes(static_cast<std::size_t>(size)) / bytes_per_ms + items * item;
}

/// Width tiles of a row.
int64_t width_tiles(const GroupProblem& p, int lead, int positions) {
  return divide_up(divide_up(p.result[2], p.phases[2]) + lead, positions);
}

/// `aligned`: with sources in shared memory, where they are.
Plan plan_on(const ConvProblem& problem, const GroupProblem& p, const ConvConfig& config, bool aligned) {
  Plan plan{};
  const int size = to_int(static_cast<int64_t>(size_of(config.dtype)));
  static_cast<small_groups::GroupSizes&>(plan) = p;
  plan.channel_bytes = to_int(p.source_rows.plane_pitch) * size;
  plan.result_plane = p.result_rows.plane_pitch;
  const bool middle = width_tiles(p, 0, 8 * kMiddle) * kMiddle < width_tiles(p, 0, 8 * kWide) * kWide;
  plan.lane_positions = width_tiles(p, 0, 8 * kNarrow) == 1 ? kNarrow : middle ? kMiddle : kWide;
  plan.positions = 8 * plan.lane_positions;
  const int lead = plan.lane_positions == kMiddle ? 0 : ((p.origin[2] % 4) + 4) % 4;
  plan.aligned = aligned && config.alignment >= 4 * size && p.source[2] % 4 == 0 &&
                 width_tiles(p, lead, plan.positions) == width_tiles(p, 0, plan.positions);
  plan.lead = plan.aligned ? lead : 0;
  if (!list_units(p, windows_of(p, plan.aligned && plan.lane_positions != kMiddle), size, plan)) return plan;
  plan.column_tiles = to_int(divide_up(p.result_channels, 8));
  int64_t items = p.batch;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t count =
        axis == 2 ? width_tiles(p, plan.lead, plan.positions) : divide_up(p.result[axis], p.phases[axis]);
    plan.tiles[axis] = FastDivide(static_cast<uint32_t>(count));
    items *= count;
  }
  if (items >= (int64_t{1} << 30) || p.groups > 65535) return plan;
  const DeviceTraits limits = small_groups::device_limits();
  const auto weight_bytes =
      static_cast<std::size_t>(plan.fragments) * static_cast<std::size_t>(plan.column_tiles) * (size == 4 ? 512 : 128);
  const auto warp_bytes = static_cast<std::size_t>(stage_bytes(plan.lane_positions, p.phases[2], size)) +
                          static_cast<std::size_t>(plan.sources_bytes);
  for (plan.warps = most_warps(plan.lane_positions, size, plan.aligned);; --plan.warps) {
    plan.shared_bytes = weight_bytes + static_cast<std::size_t>(plan.warps) * warp_bytes;
    if (plan.shared_bytes <= limits.block_memory) break;
    if (plan.warps <= 8) return plan;
  }
  plan.items = to_int(items);
  plan.blocks = blocks_of_group(p.groups, divide_up(items, plan.warps), limits.multiprocessors);
  plan.predicted_ms = predict(problem, plan, size);
  return plan;
}

}  // namespace

Plan plan_phases(const ConvProblem& problem, const ConvConfig& config) {
  if (!fits(problem, config)) return {};
  const GroupProblem p = small_groups::group_problem(problem, false);
  if (std::max(p.source_rows.plane_pitch, p.result_rows.plane_pitch) > kLargestPlane) return {};
  const Plan plan = plan_on(problem, p, config, true);
  return plan.blocks > 0 ? plan : plan_on(problem, p, config, false);
}

}  // namespace halo::cuda::conv::phases
