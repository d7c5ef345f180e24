#include "plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "cost.h"

namespace halo::cuda::conv {
namespace {

using Geometry = DenseWeightGeometry;

constexpr int64_t kExtentLimit = int64_t{1} << 28;
constexpr int kColumnChoices[] = {16, 32, 48, 64, 96, 128, 144, 192};
constexpr int kMostBoxChannels = 256;  ///< of the copy engine, and of a box's words
constexpr double kFewConflicts = 1.3;  ///< cycles of one shared-memory read
/// Positions summed in float32 before the sums move to float64: 512 additions of 32 positions each.
constexpr int kFlushPositions = 16384;

/// The problem as the kernel sees it: gathered rows, streamed columns.
struct Form {
  int64_t batch;
  int gathered_channels, streamed_channels, groups;  ///< channels of one group
  int gathered[3], streamed[3], positions[3];
  int kernel[3], stride[3], pad[3], dilation[3];
  int fold_axis = -1, fold_taps = 1, fold_pad = 0, fold_dilation = 0;
  bool aligned = false;  ///< both operands begin at multiples of 16 bytes
  int granule = 4;       ///< elements in 16 bytes

  bool fits_folded() const { return fold_taps > 1 && stride[2] == 1; }
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

/// How many lines (or, with step 1, words) that is; cut off where no shared memory could hold them.
int stored(int count, int stride, int taps, int dilation, int step) {
  const int64_t words = (int64_t{count - 1} * stride + int64_t{taps - 1} * dilation) / step + 1;
  return static_cast<int>(std::min<int64_t>(words, 1 << 20));
}

/// The matrix that channels of `plane` elements form.
PlaneMatrix plane_matrix(int64_t plane, int64_t channels, int granule) {
  PlaneMatrix m{};
  m.granule = granule;
  m.plane = plane;
  m.channels = channels;
  m.period = granule / static_cast<int>(std::gcd<int64_t>(plane, granule));
  m.period_log = std::countr_zero(static_cast<unsigned>(m.period));
  return m;
}

void set_box(int words, int channels, PlaneMatrix& m) {
  m.box_words = words;
  m.box_channels = ceil_div(channels, m.period);
  m.box_pitch = ceil_div(m.box_channels * words, 8 * m.granule) * 8 * m.granule;
}

/// Fields that do not depend on how the product is cut.
Geometry start_geometry(const Form& f) {
  Geometry g{};
  const auto plane = [](const int(&e)[3]) { return int64_t{e[0]} * e[1] * e[2]; };
  g.gathered = plane_matrix(plane(f.gathered), f.batch * f.groups * f.gathered_channels, f.granule);
  g.streamed = plane_matrix(plane(f.streamed), f.batch * f.groups * f.streamed_channels, f.granule);
  g.group_channels = f.gathered_channels;
  g.streamed_channels = f.streamed_channels;
  g.fold_axis = f.fold_axis;
  g.fold_taps = f.fold_taps;
  g.fold_pad = f.fold_pad;
  g.fold_dilation = f.fold_dilation;
  g.batch = f.batch;
  g.groups = f.groups;
  g.taps = 1;
  for (int a = 0; a < 3; ++a) {
    g.extent[a] = f.gathered[a];
    g.stride[a] = f.stride[a];
    g.pad[a] = f.pad[a];
    g.dilation[a] = f.dilation[a];
    g.streamed_extent[a] = f.streamed[a];
    g.positions[a] = f.positions[a];
    g.row_taps[a] = f.kernel[a];
    g.taps *= f.kernel[a];
  }
  g.right_padding =
      int64_t{f.positions[2] - 1} * f.stride[2] - f.pad[2] + int64_t{f.kernel[2] - 1} * f.dilation[2] >= f.gathered[2];
  g.streamed_shift = !f.aligned || f.streamed[2] % f.granule != 0 || g.streamed.period != 1;
  g.planes = f.kernel[0];
  g.line_step[0] = f.dilation[0];
  g.position_words = f.stride[2];
  g.rows = f.gathered_channels * g.taps;
  g.columns = f.streamed_channels * f.fold_taps;
  g.row_tiles = ceil_div(g.rows, kTileRows);
  return g;
}

/// Which lines a stage stores: the few it needs, or, where fewer are new to it, all that the stages of a column share.
void choose_lines(const Form& f, Geometry& g) {
  g.line_step[1] = common_step(g.step_rows, f.stride[1], f.kernel[1], f.dilation[1]);
  g.lines = g.fresh = stored(g.step_rows, f.stride[1], f.kernel[1], f.dilation[1], g.line_step[1]);
  if (g.row_blocks == 1 || f.kernel[1] == 1) return;
  const int step = std::gcd(f.stride[1], f.dilation[1]), fresh = g.step_rows * (f.stride[1] / step);
  const int lines = stored(g.step_rows, f.stride[1], f.kernel[1], f.dilation[1], step);
  if (fresh >= g.lines || fresh >= lines) return;
  g.line_step[1] = step;
  g.lines = lines;
  g.fresh = fresh;
}

/// Whether all columns of a tile begin at the same word of their boxes, and boxes of folded taps at whole patterns.
bool can_be_direct(const Form& f, const Geometry& g) {
  if (f.granule != 4 || g.streamed.period != 1) return false;
  if (f.fold_axis < 0) return true;
  const int64_t apart = int64_t{f.fold_dilation} * f.streamed[2] * (f.fold_axis == 0 ? f.streamed[1] : 1);
  return apart % 4 == 0 && f.streamed_channels % 8 == 0;
}

/// Fills what depends on the stage's shape. False where the copy engine's limits do not allow it.
bool shape_stage(const Form& f, int step_rows, int row_steps, int tile_columns, Geometry& g) {
  g.step_rows = step_rows;
  g.row_steps = row_steps;
  g.steps = step_rows * row_steps;
  g.row_blocks = ceil_div(f.positions[1], step_rows);
  g.lead = !g.direct || !g.streamed_shift ? 0 : f.aligned && f.streamed[2] % 2 == 0 ? 2 : 3;
  if (!g.direct && tile_columns > kMostColumns) return false;
  if (g.direct && (!can_be_direct(f, g) || row_steps % 4 != 0 || (g.lead != 0 && step_rows > 1))) return false;
  g.column_blocks = ceil_div(int64_t{f.positions[2]} + g.lead, 8 * row_steps);
  g.stages = f.batch * f.positions[0] * g.row_blocks * g.column_blocks;
  g.flush_stages = std::max(1, kFlushPositions / (8 * g.steps));
  choose_lines(f, g);
  const int shift = f.granule - 1;  // a line may begin that far into its box
  const int words =
      ceil_div(stored(8 * row_steps + g.lead, f.stride[2], f.kernel[2], f.dilation[2], 1) + shift, f.granule) *
      f.granule;
  if (words > kMostBoxChannels || int64_t{g.planes} * g.lines > 1024) return false;
  g.line_words = words;
  set_box(words, g.channels, g.gathered);
  set_box(g.direct ? 32 : 8 * row_steps + (g.streamed_shift ? f.granule : 0),
          std::min(tile_columns / g.fold_taps, f.streamed_channels), g.streamed);
  if (g.gathered.box_channels > kMostBoxChannels) return false;
  g.part_bytes = ceil_div(g.steps, 4) * chunk_bytes(tile_columns);
  g.raw_bytes = g.direct ? 0 : g.raw_lines() * g.streamed.period * g.streamed.box_pitch * g.element();
  return true;
}

/// Words between lines (`slack` more than fill whole bank rows) and between channels, and all offsets that follow.
void set_pitches(const Form& f, int channel_slack, int line_slack, Geometry& g) {
  const int stored_lines = g.planes * g.ring_lines, bank_row = 8 * f.granule;
  int early = 0;  // most words that a box begins before its line
  for (int i = 0; i < std::min(stored_lines, 8); ++i) early = std::max(early, i * line_slack % bank_row);
  set_box(g.line_words + early + channel_slack, g.channels, g.gathered);
  g.line_pitch = g.gathered.period * g.gathered.box_pitch + line_slack;
  g.tap_offset[0] = g.line_pitch;
  g.tap_offset[1] = f.kernel[1] == 1 ? 0 : f.dilation[1] / g.line_step[1] * g.line_words_apart();
  g.tap_offset[2] = f.dilation[2];
  for (int u = 0; u < g.steps; ++u) {
    const int line = u / g.row_steps, column = u % g.row_steps;
    g.step_offset[u] = line * (f.stride[1] / g.line_step[1]) * g.line_words_apart() + column * 8 * f.stride[2];
    g.step_shift[u] = static_cast<int>(int64_t{line} * f.stride[1] * f.gathered[2] % f.granule);
  }
  const int64_t bytes = (int64_t{stored_lines} * g.line_pitch + bank_row - 1) / bank_row * 128;
  g.gathered_bytes = static_cast<int>(std::min<int64_t>(bytes, 1 << 24));
}

std::size_t shared_bytes(const Geometry& g);

/// Rings for `tiles` stages and `ahead` more. That of the lines has room for the beginning of the next column of
/// stages, where it fits.
void size_rings(const Form& f, int tiles, int ahead, bool split, Geometry& g) {
  g.tiles = tiles;
  g.ahead = ahead;
  g.turns = !g.direct || tiles > 2;
  g.high_slots = g.direct ? tiles + ahead : tiles;
  g.low_slots = split ? tiles : 0;
  g.raw_slots = std::max(1 + ahead, 2);  // at least two: the converting warps take turns
  const int least = g.lines + g.fresh * (g.tiles + g.ahead - 1);
  g.ring_lines = least + g.lines - g.fresh;
  set_pitches(f, 0, 0, g);
  if (shared_bytes(g) <= kSharedLimit) return;
  g.ring_lines = least;
  set_pitches(f, 0, 0, g);
}

std::size_t shared_bytes(const Geometry& g) {
  return static_cast<std::size_t>(g.high_slots + g.low_slots) * static_cast<std::size_t>(g.part_bytes) +
         static_cast<std::size_t>(g.raw_slots) * static_cast<std::size_t>(g.raw_bytes) +
         static_cast<std::size_t>(g.gathered_bytes) + kFixedSharedBytes;
}

/// Widens the gaps between channels and lines, within shared memory, until A fragments meet few bank conflicts. Returns
/// cycles a read.
double spread_banks(const Form& f, Geometry& g) {
  const int fragments = std::min(8, ceil_div(g.rows, 8));
  int best = std::numeric_limits<int>::max(), best_channel = 0, best_line = 0;
  for (int channel = 0; channel < 8 * f.granule && best > fragments; channel += f.granule) {
    for (int line = 0; line < 8 * f.granule && best > fragments; line += f.granule) {
      set_pitches(f, channel, line, g);
      if (shared_bytes(g) > kSharedLimit || g.gathered.box_words > kMostBoxChannels) continue;
      const int cycles = bank_cycles(g, fragments);
      if (cycles < best) best = cycles, best_channel = channel, best_line = line;
    }
  }
  set_pitches(f, best_channel, best_line, g);
  return static_cast<double>(best) / fragments;
}

/// Blocks along rows, columns and positions, and the time of it all.
void divide_work(const Geometry& base, int tile_columns, bool split, int multiprocessors, DenseWeightPlan& plan) {
  constexpr double kBlockCycles = 6000;  // start, first stage, flush
  constexpr double kCyclesPerMs = 1.7e6;
  const int64_t outputs = int64_t{base.groups} * base.columns * base.rows;
  const int64_t most_splits = std::clamp<int64_t>(kMostPartialSums / outputs, 0, 1 << 20);
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

/// Stage shapes of one cut, with the deepest pipeline that fits; true if any fits.
bool plan_stages(const Form& f, int tile_columns, bool split, int multiprocessors, Geometry g, DenseWeightPlan& best,
                 bool swapped) {
  bool fits = false;
  for (int row_steps = 1; row_steps <= std::min(kMaxSteps, ceil_div(f.positions[2], 8)); ++row_steps) {
    for (int rows = 1; rows * row_steps <= kMaxSteps && rows <= f.positions[1]; ++rows) {
      if (!shape_stage(f, rows, row_steps, tile_columns, g)) continue;
      constexpr int kDepths[][2] = {{3, 3}, {3, 2}, {2, 3}, {2, 2}, {3, 1}, {2, 1}, {2, 0}};  // tiles, ahead
      for (const auto& depth : kDepths) {
        size_rings(f, depth[0], depth[1], split, g);
        if (shared_bytes(g) > kSharedLimit) continue;
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
  }
  return fits;
}

/// The best plan of one form with `tile_columns` columns a block.
void plan_form(const Form& f, int tile_columns, bool split, int multiprocessors, DenseWeightPlan& best, bool swapped) {
  Geometry g = start_geometry(f);
  g.n_blocks = ceil_div(g.columns, tile_columns);
  if (g.n_blocks > 1 && f.fold_taps > 1) return;
  const int most_tiles = kConsumers * dense_weight_row_tiles(tile_columns);
  // More, shorter blocks where a full one's halo tile does not fit.
  for (g.m_blocks = ceil_div(g.row_tiles, most_tiles); g.m_blocks <= g.row_tiles;
       g.m_blocks += std::max(1, g.m_blocks / 2)) {
    if (int64_t{g.row_tiles} * g.m_blocks > std::numeric_limits<int>::max()) return;  // blocks are cut in an int
    g.channels = block_channels(g, f.gathered_channels);
    bool fits = false;
    for (const bool direct : {true, false}) {  // the first of equals is kept
      g.direct = direct;
      fits = plan_stages(f, tile_columns, split, multiprocessors, g, best, swapped) || fits;
    }
    if (fits) break;
  }
}

}  // namespace

DenseWeightPlan plan_dense_weight(const ConvProblem& problem, bool split, bool aligned, int multiprocessors,
                                  int element) {
  DenseWeightPlan best;
  Form best_form{};
  if (problem.w_numel() == 0 || problem.w_numel() > kMostPartialSums) return best;
  if (problem.x_numel() == 0 || problem.y_numel() == 0) return best;
  const int64_t plane_limit = kExtentLimit * element / 4;  // a row of the copy engine has as many planes as a granule
  if (problem.input_positions() >= plane_limit || problem.output_positions() >= plane_limit) return best;
  if (std::max(problem.x_numel() / problem.input_positions(), problem.y_numel() / problem.output_positions()) >=
      kExtentLimit)
    return best;
  for (std::size_t a = 0; a < 3; ++a) {
    const int64_t reach = (problem.output[a] + 8 * kMaxSteps) * problem.stride[a] + std::abs(problem.padding_before[a]);
    if (problem.kernel[a] * problem.dilation[a] >= kExtentLimit || reach >= kExtentLimit) return best;
  }
  for (const bool swap : {false, true}) {
    std::optional<Form> form = make_form(problem, swap);
    if (!form) continue;
    form->aligned = aligned;
    form->granule = 16 / element;
    for (const int axis : {-1, 0, 1}) {
      const std::optional<Form> folded = axis < 0 ? form : fold(*form, axis);
      if (!folded) continue;
      for (const int columns : kColumnChoices) {
        if (columns > kMostColumns && (split || !folded->fits_folded())) continue;
        const double before = best.valid ? best.milliseconds : std::numeric_limits<double>::infinity();
        plan_form(*folded, columns, split, multiprocessors, best, swap);
        if (best.valid && best.milliseconds < before) best_form = *folded;
      }
    }
  }
  if (!best.valid) return best;
  // Room for spreading comes from the stages that are fetched ahead where it must.
  Geometry& g = best.geometry;
  while (spread_banks(best_form, g) > kFewConflicts && g.ahead > 1)
    size_rings(best_form, g.tiles, g.ahead - 1, split, g);
  best.shared_bytes = shared_bytes(g);
  return best;
}

}  // namespace halo::cuda::conv
