#include <algorithm>
#include <vector>

#include "phases.h"
#include "small_groups_limits.h"

namespace halo::cuda::conv::phases {
namespace {

using small_groups::divide_up;
using small_groups::GroupProblem;
using small_groups::to_int;

constexpr int kMostChannels = 16;
constexpr int64_t kLargestPlane = int64_t{1} << 26;

struct Window {
  int start;
  uint32_t taps = 0;
  int words = 0;
};

/// Windows that cover all taps of the width. `aligned`: they start at multiples of four.
std::vector<Window> windows_of(const GroupProblem& p, bool aligned, Plan& plan) {
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
      window.words = std::max(window.words, shift + 4);
      plan.width_taps[windows.size()][place] = static_cast<int8_t>(tap);
    });
    from = window.start + kShifts;
    windows.push_back(window);
  }
}

/// Source rows that phases of depth and height in [first, last) read, in the order of the sum.
struct SourceRow {
  int depth, height, phases = 0, tap[kRows] = {};
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

/// The units of all rounds; false where they are too many.
bool list_units(const GroupProblem& p, const std::vector<Window>& windows, int size, Plan& plan) {
  const int outer_phases = p.phases[0] * p.phases[1];
  const int last_channel = std::max(0, p.source_channels - kSourceChannels);
  plan.rounds = to_int(divide_up(outer_phases, kRows));
  plan.shifts = 2;
  for (int round = 0; round < plan.rounds; ++round) {
    plan.first_unit[round] = plan.unit_count;
    for (const SourceRow& row : rows_of(p, round * kRows, std::min(outer_phases, (round + 1) * kRows))) {
      for (int channel = 0; channel < p.source_channels; channel += kSourceChannels) {
        for (std::size_t w = 0; w < windows.size(); ++w) {
          if (plan.unit_count == kMostUnits) return false;
          Unit& unit = plan.units[plan.unit_count++];
          unit.channel = std::min(channel, last_channel);
          unit.taken = channel - unit.channel;
          unit.depth = row.depth;
          unit.height = row.height;
          unit.width = windows[w].start;
          unit.offset = (unit.channel * p.source_rows.plane_pitch + unit.depth * p.source_rows.outer_pitch +
                         unit.height * p.source_rows.inner_pitch + unit.width) *
                        size;
          unit.taps = windows[w].taps | static_cast<uint32_t>(row.phases) << kTapBits;
          if (windows[w].words > 5) plan.shifts = 4;
          unit.words = windows[w].words;
          unit.window = to_int(static_cast<int64_t>(w));
          unit.fragment = plan.fragments;
          std::copy(row.tap, row.tap + kRows, unit.outer_tap);
          plan.fragments += __builtin_popcount(windows[w].taps) * __builtin_popcount(static_cast<unsigned>(row.phases));
        }
      }
    }
  }
  plan.first_unit[plan.rounds] = plan.unit_count;
  return true;
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
  constexpr double kBytesPerMs = 3e9, kItemsPerMs = 1e6;
  const double item = plan.unit_count * (size == 4 ? 10.0 : 8.0) + plan.fragments * (size == 4 ? 6.0 : 3.0);  // ns
  const double items = static_cast<double>(plan.items) * plan.groups / small_groups::device_limits().multiprocessors;
  return 4e-3 + problem.bytes(static_cast<std::size_t>(size)) / kBytesPerMs + items * item / kItemsPerMs;
}

/// Width tiles of a row.
int64_t width_tiles(const GroupProblem& p, int lead) {
  return divide_up(divide_up(p.result[2], p.phases[2]) + lead, kPositions);
}

}  // namespace

Plan plan_phases(const ConvProblem& problem, const ConvConfig& config) {
  Plan plan{};
  if (!fits(problem, config)) return plan;
  const GroupProblem p = small_groups::group_problem(problem, false);
  if (std::max(p.source_rows.plane_pitch, p.result_rows.plane_pitch) > kLargestPlane) return plan;
  const int size = to_int(static_cast<int64_t>(size_of(config.dtype)));
  plan.batch = p.batch;
  plan.groups = p.groups;
  plan.source_channels = p.source_channels;
  plan.result_channels = p.result_channels;
  for (int axis = 0; axis < 3; ++axis) {
    plan.source[axis] = p.source[axis];
    plan.result[axis] = p.result[axis];
    plan.phases[axis] = p.phases[axis];
    plan.origin[axis] = p.origin[axis];
  }
  plan.channel_bytes = to_int(p.source_rows.plane_pitch) * size;
  plan.result_plane = p.result_rows.plane_pitch;
  plan.weight_group = p.weight_group;
  plan.weight_result = p.weight_result;
  plan.weight_source = p.weight_source;
  const int lead = ((p.origin[2] % 4) + 4) % 4;
  plan.aligned = config.alignment >= 4 * size && p.source[2] % 4 == 0 && width_tiles(p, lead) == width_tiles(p, 0);
  plan.lead = plan.aligned ? lead : 0;
  if (!list_units(p, windows_of(p, plan.aligned, plan), size, plan)) return plan;
  plan.column_tiles = to_int(divide_up(p.result_channels, 8));
  plan.columns = FastDivide(static_cast<uint32_t>(plan.column_tiles));
  int64_t items = p.batch * plan.column_tiles;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t count = axis == 2 ? width_tiles(p, plan.lead) : divide_up(p.result[axis], p.phases[axis]);
    plan.tiles[axis] = FastDivide(static_cast<uint32_t>(count));
    items *= count;
  }
  if (items >= (int64_t{1} << 30) || p.groups > 65535) return plan;
  const DeviceTraits limits = small_groups::device_limits();
  // With short windows of float32, more would wait for each other at the first-level cache.
  plan.warps = size == 4 && plan.shifts == 2 ? 12 : most_warps(p.phases[2], size);
  plan.shared_bytes = static_cast<std::size_t>(plan.fragments) * static_cast<std::size_t>(plan.column_tiles) *
                          (size == 4 ? 512u : 128u) +
                      static_cast<std::size_t>(plan.warps * stage_bytes(p.phases[2], size));
  if (plan.shared_bytes > limits.block_memory) return plan;
  plan.items = to_int(items);
  plan.blocks = blocks_of_group(p.groups, divide_up(items, plan.warps), limits.multiprocessors);
  plan.predicted_ms = predict(problem, plan, size);
  return plan;
}

}  // namespace halo::cuda::conv::phases
