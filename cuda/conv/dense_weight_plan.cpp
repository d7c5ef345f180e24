#include "dense_weight_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "algorithm.h"

namespace halo::cuda::conv {
namespace {

using Geometry = DenseWeightGeometry;

constexpr int64_t kExtentLimit = int64_t{1} << 30;
constexpr int kColumnChoices[] = {16, 32, 48, 64, 96, 128};
/// Positions summed in float32 before the sums move to float64: 512 additions of 32 positions each.
constexpr int kFlushPositions = 16384;

/// The problem as the kernel sees it: gathered rows, streamed columns.
struct Form {
  int64_t batch;
  int gathered_channels, streamed_channels, groups;  ///< channels of one group
  int gathered[3], streamed[3], positions[3];
  int kernel[3], stride[3], pad[3], dilation[3];
  int fold_axis = -1, fold_taps = 1, fold_pad = 0, fold_dilation = 0;
};

int narrow(int64_t value) { return static_cast<int>(value); }

std::optional<Form> make_form(const ConvProblem& p, bool swap) {
  Form f{};
  f.batch = p.batch;
  f.groups = narrow(p.groups);
  f.gathered_channels = narrow(p.in_channels_per_group());
  f.streamed_channels = narrow(p.out_channels_per_group());
  for (std::size_t a = 0; a < 3; ++a) {
    const int64_t reach = (p.kernel[a] - 1) * p.dilation[a];
    if (swap && p.stride[a] != 1) return std::nullopt;
    f.gathered[a] = narrow(swap ? p.output[a] : p.input[a]);
    f.streamed[a] = narrow(swap ? p.input[a] : p.output[a]);
    f.kernel[a] = narrow(p.kernel[a]);
    f.stride[a] = narrow(p.stride[a]);
    f.dilation[a] = narrow(p.dilation[a]);
    f.pad[a] = narrow(swap ? reach - p.padding_before[a] : p.padding_before[a]);
    f.positions[a] = f.streamed[a];
  }
  if (swap) std::swap(f.gathered_channels, f.streamed_channels);
  return f;
}

/// Moves the taps of `axis` to the columns; positions along it become those of the gathered operand.
std::optional<Form> fold(Form f, int axis) {
  if (f.kernel[axis] == 1 || f.kernel[axis] > kMostFoldedTaps || f.stride[axis] != 1) return std::nullopt;
  f.fold_axis = axis;
  f.fold_taps = f.kernel[axis];
  f.fold_pad = f.pad[axis];
  f.fold_dilation = f.dilation[axis];
  f.positions[axis] = f.gathered[axis];
  f.kernel[axis] = 1;
  f.pad[axis] = 0;
  f.dilation[axis] = 1;
  return f;
}

int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

/// Distance between the stored lines or words that `count` positions `stride` apart and `taps` taps `dilation` apart
/// use.
int common_step(int count, int stride, int taps, int dilation) {
  if (taps == 1) return count == 1 ? 1 : stride;
  return count == 1 ? dilation : std::gcd(stride, dilation);
}

/// How many of them; cut off where no shared memory could hold them.
int stored(int count, int stride, int taps, int dilation, int step) {
  const int64_t words = (int64_t{count - 1} * stride + int64_t{taps - 1} * dilation) / step + 1;
  return static_cast<int>(std::min<int64_t>(words, 1 << 20));
}

/// Fills everything that depends on the form and the stage's shape; pitches are the tightest.
void shape_stage(const Form& f, int step_rows, int row_steps, int alignment, Geometry& g) {
  auto& x = g.gathered;
  g.step_rows = step_rows;
  g.row_steps = row_steps;
  g.steps = step_rows * row_steps;
  g.row_blocks = ceil_div(f.positions[1], step_rows);
  g.column_blocks_w = ceil_div(ceil_div(f.positions[2], 8), row_steps);
  g.stages = f.batch * f.positions[0] * g.row_blocks * g.column_blocks_w;
  g.flush_stages = std::max(1, kFlushPositions / (8 * g.steps));
  x.step[0] = f.dilation[0];
  x.step[1] = common_step(step_rows, f.stride[1], f.kernel[1], f.dilation[1]);
  x.step[2] = common_step(8 * row_steps, f.stride[2], f.kernel[2], f.dilation[2]);
  x.planes = f.kernel[0];
  x.lines = stored(step_rows, f.stride[1], f.kernel[1], f.dilation[1], x.step[1]);
  x.words = stored(8 * row_steps, f.stride[2], f.kernel[2], f.dilation[2], x.step[2]);
  x.vector = alignment >= 16 && f.gathered[2] % 4 == 0 && x.step[2] == 1 ? 4 : 1;
  x.lead = 0;
  if (x.vector == 4) {
    x.lead = ((-f.pad[2]) % 4 + 4) % 4;  // a stage begins at a multiple of 8 positions
    x.words = (x.words + x.lead + 3) / 4 * 4;
  }
  const int copies = x.words / x.vector;
  x.lanes = copies <= 8 ? 8 : 16;
  if (copies > 16 && ceil_div(copies, 32) * 2 <= ceil_div(copies, 16)) x.lanes = 32;
  g.position_words = f.stride[2] / x.step[2];
}

/// Shared memory beside the stages.
std::size_t table_bytes(const Geometry& g) {
  const std::size_t lines = static_cast<std::size_t>(g.gathered.channels) *
                            static_cast<std::size_t>(g.gathered.planes) * static_cast<std::size_t>(g.gathered.lines);
  return lines * kLineEntryBytes + kFixedSharedBytes;
}

void set_pitches(const Form& f, int line_slack, int channel_slack, Geometry& g) {
  auto& x = g.gathered;
  x.line_pitch = x.words + line_slack;
  x.plane_pitch = x.lines * x.line_pitch;
  x.channel_pitch = x.planes * x.plane_pitch + channel_slack;
  x.channel_pitch = (x.channel_pitch + x.vector - 1) / x.vector * x.vector;
  g.tap_offset[0] = x.plane_pitch;
  g.tap_offset[1] = f.dilation[1] / x.step[1] * x.line_pitch;
  g.tap_offset[2] = f.dilation[2] / x.step[2];
  if (f.kernel[1] == 1) g.tap_offset[1] = 0;
  if (f.kernel[2] == 1) g.tap_offset[2] = 0;
  for (int u = 0; u < kMaxSteps; ++u) {
    const int line = u / g.row_steps, column = u % g.row_steps;
    g.step_offset[u] = line * (f.stride[1] / x.step[1]) * x.line_pitch + column * 8 * g.position_words;
  }
  g.gathered_bytes = (x.channels * x.channel_pitch * 4 + 127) / 128 * 128;
}

int row_words(const Geometry& g, int row) {
  const int tap = row % g.taps;
  return row / g.taps * g.gathered.channel_pitch + tap / (g.row_taps[2] * g.row_taps[1]) * g.tap_offset[0] +
         tap / g.row_taps[2] % g.row_taps[1] * g.tap_offset[1] + tap % g.row_taps[2] * g.tap_offset[2];
}

/// Shared-memory cycles of the reads of a few A fragments: each reads 8 rows by 4 positions, one cycle where no two
/// different words share a bank.
int bank_cycles(const Geometry& g, int fragments) {
  int cycles = 0;
  for (int fragment = 0; fragment < fragments; ++fragment) {
    std::array<int, 32> words;
    std::array<int, 32> load{};
    int worst = 1;
    for (int i = 0; i < 32; ++i) {
      const int row = std::min(fragment * 8 + i / 4, g.rows - 1);
      const int word = row_words(g, row) + i % 4 * g.position_words;
      words[static_cast<std::size_t>(i)] = word;
      const auto seen = words.begin() + i;
      if (std::find(words.begin(), seen, word) == seen)
        worst = std::max(worst, ++load[static_cast<std::size_t>(word % 32)]);
    }
    cycles += worst;
  }
  return cycles;
}

/// Widens the pitches, within `bytes` of a stage, until A fragments meet few bank conflicts.
void spread_banks(const Form& f, int bytes, Geometry& g) {
  const int fragments = std::min(8, ceil_div(g.rows, 8));
  int best = std::numeric_limits<int>::max(), best_line = 0, best_channel = 0;
  for (int line = 0; line < 8 && best > fragments; line += g.gathered.vector) {
    for (int channel = 0; channel < 32 && best > fragments; channel += g.gathered.vector) {
      set_pitches(f, line, channel, g);
      if (g.gathered_bytes > bytes) continue;
      const int cycles = bank_cycles(g, fragments);
      if (cycles < best) best = cycles, best_line = line, best_channel = channel;
    }
  }
  set_pitches(f, best_line, best_channel, g);
}

/// Multiprocessor cycles of one k8 step of one 64-row tile, from the measured inner loop.
double tile_step_cycles(int columns, bool split) {
  return std::max((split ? 3 : 1) * columns / 2.0 + 21, split ? 85.0 : 30.0);
}

/// Cycles of one stage of a block: the slowest of the tensor core, the loading warps, shared memory and the L2 cache.
double stage_cycles(const Geometry& g, int tile_columns, int tiles, bool split) {
  const auto& x = g.gathered;
  const double multiply = g.steps * tiles * tile_step_cycles(tile_columns, split);
  const double lines = static_cast<double>(x.channels) * x.planes * x.lines;
  const double copies = ceil_div(x.words / x.vector, x.lanes);
  const double gather = lines / (128.0 / x.lanes) * (18 + copies * (x.vector == 4 ? 8 : 6));
  const double elements = g.steps * 8.0 * std::min(tile_columns, g.columns) / 128;
  const double stream = elements * (split ? 11 : 7) / (g.streamed.vector == 4 ? 1.8 : 1.0) + 900;
  const double shared = g.steps * tiles * (16.0 + (split ? 3 : 1) * tile_columns / 4.0) +
                        elements * 128 * (split ? 12 : 8) / 128.0 + lines * x.words * 4 / 128;
  // Reads from the L2 cache come in sectors of 32 bytes, one more where a line is not aligned.
  const double gather_bytes = lines * (x.words * x.step[2] * 4 + 32);
  const double stream_bytes =
      std::min(tile_columns, g.columns) * g.step_rows * (g.row_steps * 32.0 + (g.streamed.vector == 4 ? 0 : 32));
  const double cache = (gather_bytes + stream_bytes) / 20;
  return std::max({multiply, gather + stream, shared, cache}) + 100;
}

/// Blocks along rows, columns and positions, and the time of it all.
void divide_work(const Geometry& base, int tile_columns, bool split, int multiprocessors, DenseWeightPlan& plan) {
  constexpr double kBlockCycles = 6000;  // start, first stage, flush
  constexpr double kCyclesPerMs = 1.7e6;
  const int64_t outputs = int64_t{base.groups} * base.columns * base.rows;
  const int64_t most_splits = std::clamp<int64_t>(static_cast<int64_t>(kWorkspaceCap / 8) / outputs, 0, 1 << 20);
  if (most_splits == 0) return;
  const int64_t tiles_of_blocks = int64_t{base.m_blocks} * base.n_blocks * base.groups;
  const int most_tiles = ceil_div(base.row_tiles, base.m_blocks);
  const double worst = stage_cycles(base, tile_columns, most_tiles, split);
  const double mean = worst * base.row_tiles / (static_cast<double>(most_tiles) * base.m_blocks);
  double best = std::numeric_limits<double>::infinity();
  for (int wave = 1; wave <= 6; ++wave) {
    int64_t splits = std::max<int64_t>(1, int64_t{multiprocessors} * wave / tiles_of_blocks);
    splits = std::min({splits, std::max<int64_t>(base.stages, 1), most_splits});
    const int64_t blocks = tiles_of_blocks * splits;
    const double stages = static_cast<double>(ceil_div(base.stages, splits));
    const double slowest = stages * worst + kBlockCycles;
    const double total = static_cast<double>(blocks) * (stages * mean + kBlockCycles) / multiprocessors;
    const double whole = ceil_div(blocks, multiprocessors) * slowest;
    const double cycles = mean == worst || wave == 1 ? whole : std::min(whole, total + 0.6 * slowest);
    const double reduce = static_cast<double>(outputs * splits) * 8 / 2.5e12 * 1e3 + 0.006;
    const double ms = cycles / kCyclesPerMs + reduce;
    if (ms < best) {
      best = ms;
      plan.geometry.splits = static_cast<int>(splits);
      plan.blocks = blocks;
      plan.workspace_bytes = static_cast<std::size_t>(outputs * splits) * sizeof(double);
    }
  }
  plan.milliseconds = best;
  plan.valid = plan.blocks < std::numeric_limits<int32_t>::max();
}

/// Fields that do not depend on how the product is cut.
Geometry start_geometry(const Form& f, int alignment) {
  Geometry g{};
  const auto plane = [](const int(&e)[3]) { return int64_t{e[0]} * e[1] * e[2]; };
  auto& x = g.gathered;
  x.channel = plane(f.gathered);
  x.group = x.channel * f.gathered_channels;
  x.batch = x.group * f.groups;
  auto& y = g.streamed;
  y.channel = plane(f.streamed);
  y.group = y.channel * f.streamed_channels;
  y.batch = y.group * f.groups;
  y.channels = f.streamed_channels;
  y.vector = alignment >= 16 && f.streamed[2] % 4 == 0 ? 4 : 1;
  g.fold_axis = f.fold_axis;
  g.fold_taps = f.fold_taps;
  g.fold_pad = f.fold_pad;
  g.fold_dilation = f.fold_dilation;
  g.batch = f.batch;
  g.groups = f.groups;
  g.taps = 1;
  for (int a = 0; a < 3; ++a) {
    x.extent[a] = f.gathered[a];
    x.stride[a] = f.stride[a];
    x.pad[a] = f.pad[a];
    y.extent[a] = f.streamed[a];
    g.positions[a] = f.positions[a];
    g.row_taps[a] = f.kernel[a];
    g.taps *= f.kernel[a];
  }
  g.rows = f.gathered_channels * g.taps;
  g.columns = f.streamed_channels * f.fold_taps;
  g.row_tiles = ceil_div(g.rows, kTileRows);
  return g;
}

/// The channels that the rows of one block span, at most.
int block_channels(const Geometry& g, int gathered_channels) {
  int most = 0;
  for (int block = 0; block < g.m_blocks; ++block) {
    const int first = g.row_tiles * block / g.m_blocks * kTileRows;
    const int last = std::min(g.row_tiles * (block + 1) / g.m_blocks * kTileRows, g.rows) - 1;
    most = std::max(most, last / g.taps - first / g.taps + 1);
  }
  return std::min(most, gathered_channels);
}

/// Whether offsets within one stage, in floats, fit the kernel's 32-bit tables.
bool offsets_fit(const Form& f, const Geometry& g) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto reach = [&](const int(&extent)[3], int axis) { return int64_t{extent[2]} * (axis == 0 ? extent[1] : 1); };
  const int64_t gathered =
      g.gathered.channels * g.gathered.channel + (int64_t{g.gathered.planes} * g.gathered.step[0] * f.gathered[1] +
                                                  int64_t{g.gathered.lines} * g.gathered.step[1]) *
                                                     f.gathered[2];
  const int64_t fold = f.fold_axis < 0 ? 0
                                       : (std::abs(int64_t{f.fold_pad}) + int64_t{f.fold_taps} * f.fold_dilation) *
                                             reach(f.streamed, f.fold_axis);
  return gathered < kMost && g.streamed.channel * std::min(f.streamed_channels, kMostColumns) + fold < kMost;
}

/// The best plan of one form with `tile_columns` columns a block.
void plan_form(const Form& f, int tile_columns, bool split, int alignment, int multiprocessors, DenseWeightPlan& best,
               bool swapped) {
  Geometry g = start_geometry(f, alignment);
  g.n_blocks = ceil_div(g.columns, tile_columns);
  if (g.n_blocks > 1 && f.fold_taps > 1) return;
  g.streamed_bytes = tile_columns / 8 * kColumnGroupPitch * (split ? 2 : 1);
  const int most_tiles = kConsumers * dense_weight_row_tiles(tile_columns);
  const int fewest_blocks = ceil_div(g.row_tiles, most_tiles);
  // More, shorter blocks where a full one's halo tile does not fit.
  for (g.m_blocks = fewest_blocks; g.m_blocks <= g.row_tiles; g.m_blocks += std::max(1, g.m_blocks / 2)) {
    g.gathered.channels = block_channels(g, f.gathered_channels);
    bool fits = false;
    for (int row_steps = 1; row_steps <= std::min(kMaxSteps, ceil_div(f.positions[2], 8)); ++row_steps) {
      for (int rows = 1; rows * row_steps <= kMaxSteps && rows <= f.positions[1]; ++rows) {
        shape_stage(f, rows, row_steps, alignment, g);
        const int64_t lines = int64_t{g.gathered.planes} * g.gathered.lines;
        if (lines * g.gathered.channels > 2048 || lines * g.gathered.words * g.gathered.channels > 65536) continue;
        if (!offsets_fit(f, g)) continue;
        set_pitches(f, 0, 0, g);
        const std::size_t stage = static_cast<std::size_t>(g.streamed_bytes + g.gathered_bytes);
        g.pipeline = static_cast<int>(std::min<std::size_t>(kMaxStages, (kSharedLimit - table_bytes(g)) / stage));
        if (g.pipeline < 2) continue;
        fits = true;
        DenseWeightPlan plan;
        plan.geometry = g;
        plan.swapped = swapped;
        plan.split = split;
        plan.tile_columns = tile_columns;
        divide_work(g, tile_columns, split, multiprocessors, plan);
        if (plan.valid && (!best.valid || plan.milliseconds < best.milliseconds)) best = plan;
      }
    }
    if (fits) break;
  }
}

}  // namespace

DenseWeightPlan plan_dense_weight(const ConvProblem& problem, bool split, int alignment, int multiprocessors) {
  DenseWeightPlan best;
  Form best_form{};
  if (problem.w_numel() == 0 || problem.w_numel() > static_cast<int64_t>(kWorkspaceCap / 8)) return best;
  if (problem.batch >= kExtentLimit) return best;
  for (std::size_t a = 0; a < 3; ++a) {
    const int64_t span = std::max({problem.input[a], problem.output[a], problem.kernel[a] * problem.dilation[a]});
    const int64_t reach = (problem.output[a] + 8 * kMaxSteps) * problem.stride[a] + std::abs(problem.padding_before[a]);
    if (span >= kExtentLimit || reach >= kExtentLimit) return best;
  }
  for (const bool swap : {false, true}) {
    const std::optional<Form> form = make_form(problem, swap);
    if (!form) continue;
    for (const int axis : {-1, 0, 1}) {
      const std::optional<Form> folded = axis < 0 ? form : fold(*form, axis);
      if (!folded) continue;
      for (const int columns : kColumnChoices) {
        const double before = best.valid ? best.milliseconds : std::numeric_limits<double>::infinity();
        plan_form(*folded, columns, split, alignment, multiprocessors, best, swap);
        if (best.valid && best.milliseconds < before) best_form = *folded;
      }
    }
  }
  if (!best.valid) return best;
  Geometry& g = best.geometry;
  const int stage_limit = static_cast<int>((kSharedLimit - table_bytes(g)) / static_cast<std::size_t>(g.pipeline));
  spread_banks(best_form, stage_limit / 128 * 128 - g.streamed_bytes, g);
  best.shared_bytes =
      static_cast<std::size_t>(g.pipeline) * static_cast<std::size_t>(g.streamed_bytes + g.gathered_bytes) +
      table_bytes(g);
  return best;
}

}  // namespace halo::cuda::conv
