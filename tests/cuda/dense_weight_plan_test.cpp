// The dense weight gradient's geometry, executed on the CPU as the kernel executes it and compared with plain loops:
// boxes of flat channel planes, padding, folded and swapped forms, blocks, splits. Needs no GPU.
#include <halo/cuda/conv/dense_weight/plan.h>

#include <algorithm>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "plain_pass.h"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

using Doubles = std::vector<double>;

/// Small integers, so that every sum is exact.
Doubles integers(int64_t count, std::mt19937& generator) {
  Doubles v(static_cast<std::size_t>(count));
  for (double& value : v) value = static_cast<int>(generator() % 7) - 3;
  return v;
}

/// The weight gradient by its definition.
Doubles plain(const ConvProblem& p, const Doubles& x, const Doubles& y) {
  Doubles w(static_cast<std::size_t>(p.w_numel()), 0.0);
  for_each_product(p, [&](std::size_t at_x, std::size_t at_w, std::size_t at_y) { w[at_w] += y[at_y] * x[at_x]; });
  return w;
}

/// The stages of one block, one after the other, with the kernel's own tiles; every access is checked against their
/// sizes.
class Stage {
 public:
  Stage(const DenseWeightGeometry& geometry, int tile_columns, const Doubles& gathered, const Doubles& streamed)
      : g(geometry), tile_columns_(tile_columns), gathered_(gathered), streamed_(streamed) {}

  /// `first`: no stage came before, in whose lines this one's may be found.
  void fetch(bool first, int64_t n, int depth, int row_block, int column_block, int group, int first_channel,
             int channels, int first_column, int columns) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    const int lines = first || row_block == 0 ? g.lines : g.fresh;
    if (first) tile_.assign(static_cast<std::size_t>(g.gathered_bytes / g.element()), kNan);
    first_line_ = first ? 0 : (first_line_ + lines) % g.ring_lines;
    raw_.assign(static_cast<std::size_t>((g.direct ? g.part_bytes : g.raw_bytes) / g.element()), kNan);
    depth_ = depth, row_block_ = row_block, column_block_ = column_block;
    gathered_channel_ = (n * g.groups + group) * g.group_channels + first_channel;
    streamed_channel_ = (n * g.groups + group) * g.streamed_channels + first_column;
    for (int i = 0; i < g.planes * lines * g.gathered.period; ++i) {
      const int residue = i % g.gathered.period, plane = i / g.gathered.period % g.planes;
      const int line = g.lines - lines + i / g.gathered.period / g.planes;
      int64_t flat = 0;
      const bool inside = gathered_line(plane, line, flat);
      const int begin = line_begin(plane, line), early = begin % (8 * g.gathered.granule);
      box(g.gathered, gathered_, gathered_channel_ + residue, inside, flat, early, tile_,
          begin - early + residue * g.gathered.box_pitch, false);
    }
    const int boxes = g.direct ? g.row_steps / 4 : g.streamed.period;  // of a line
    for (int i = 0; i < g.raw_lines() * boxes; ++i) {
      const int line = i / boxes / g.fold_taps, tap = i / boxes % g.fold_taps, own = i % boxes;
      int64_t flat = 0;
      const bool inside = streamed_line(line, tap, flat);
      if (g.direct) {
        const int to = (line * boxes + own) * chunk_bytes(tile_columns_) / 4 + tap * g.streamed.box_channels * 32;
        box(g.streamed, streamed_, streamed_channel_, inside, flat + own * 32, 0, raw_, to, true);
      } else {
        box(g.streamed, streamed_, streamed_channel_ + own, inside, flat, 0, raw_, i * g.streamed.box_pitch, false);
      }
    }
    patch(lines, channels, columns / g.fold_taps);
  }

  /// gathered(row, position) of k8 step `step`; `row` counts from the block's first channel.
  double gathered(int row, int step, int position) const {
    const int channel = row / g.taps, tap = row % g.taps;
    const int z = tap / (g.row_taps[1] * g.row_taps[2]), y = tap / g.row_taps[2] % g.row_taps[1];
    int64_t flat = 0;
    gathered_line(0, 0, flat);
    flat += (gathered_channel_ + channel) * g.gathered.plane +
            (int64_t{z} * g.dilation[0] * g.extent[1] + y * g.dilation[1]) * g.extent[2] + g.step_shift[step];
    const int ring = g.ring_lines * g.line_words_apart();
    const int at = first_line_ * g.line_words_apart() + g.gathered.channel_word(channel) + z * g.tap_offset[0] +
                   y * g.tap_offset[1] + tap % g.row_taps[2] * g.tap_offset[2] + g.step_offset[step];
    const int lead = (g.lead - before()) * g.position_words;
    return tile_.at((at >= ring ? at - ring : at) + position * g.position_words + (flat & (g.gathered.granule - 1)) +
                    lead);
  }

  double streamed(int column, int channels, int step, int position) const {
    const int tap = column / channels, channel = column % channels, line = step / g.row_steps;
    const int word = step % g.row_steps * 8 + position;
    if (g.direct) {
      const int row = step / 4 * tile_columns_ + column, piece = step % 4 * 2 + position / 4;
      return raw_.at(row * 32 + (piece ^ column % 8) * 4 + position % 4);
    }
    int64_t flat = 0;
    if (!streamed_line(line, tap, flat) || column_block_ * g.row_steps * 8 + word >= g.streamed_extent[2]) return 0;
    const int64_t begin = ((streamed_channel_ + channel) * g.streamed.plane + flat) & (g.streamed.granule - 1);
    if (begin != 0 && !g.streamed_shift) throw std::logic_error("a shifted line without room for it");
    return raw_.at((line * g.fold_taps + tap) * g.streamed.period * g.streamed.box_pitch +
                   g.streamed.channel_word(channel) + word + begin);
  }

  bool exists(int step, int position) const {
    const int column = (column_block_ * g.row_steps + step % g.row_steps) * 8 + position - before();
    return row_block_ * g.step_rows + step / g.row_steps < g.positions[1] && column >= 0 && column < g.positions[2];
  }

 private:
  int left_edge() const { return (column_block_ * g.row_steps * 8 - g.lead) * g.stride[2] - g.pad[2]; }
  /// Word of a stored line in the ring.
  int line_begin(int plane, int line) const {
    return ((first_line_ + line) % g.ring_lines * g.planes + plane) * g.line_pitch;
  }
  /// Words that a direct tile holds before the first position of its line.
  int before() const {
    if (g.lead == 0) return 0;
    int64_t flat = 0;
    streamed_line(0, 0, flat);
    return static_cast<int>((streamed_channel_ * g.streamed.plane + flat) & 3);
  }
  bool gathered_line(int plane, int line, int64_t& flat) const {
    const int z = depth_ * g.stride[0] - g.pad[0] + plane * g.line_step[0];
    const int y = row_block_ * g.step_rows * g.stride[1] - g.pad[1] + line * g.line_step[1];
    flat = (int64_t{z} * g.extent[1] + y) * g.extent[2] + left_edge();
    return z >= 0 && z < g.extent[0] && y >= 0 && y < g.extent[1];
  }
  bool streamed_line(int line, int tap, int64_t& flat) const {
    const int shift = g.fold_pad - tap * g.fold_dilation, h = row_block_ * g.step_rows + line;
    const int z = depth_ + (g.fold_axis == 0 ? shift : 0), y = h + (g.fold_axis == 1 ? shift : 0);
    flat = (int64_t{z} * g.streamed_extent[1] + y) * g.streamed_extent[2] + column_block_ * g.row_steps * 8;
    return h < g.positions[1] && z >= 0 && z < g.streamed_extent[0] && y >= 0 && y < g.streamed_extent[1];
  }

  /// The copy engine: zeros outside the matrix, corners and targets on its grid, lines of 32 words swizzled.
  static void box(const PlaneMatrix& m, const Doubles& from, int64_t channel, bool inside, int64_t flat, int early,
                  Doubles& to, int target, bool swizzle) {
    const int64_t row = channel / m.period,
                  corner = ((channel % m.period * m.plane + flat) & -int64_t{m.granule}) - early;
    if (target % (swizzle ? 256 : 8 * m.granule) != 0 || corner % m.granule != 0 || m.box_words % m.granule != 0)
      throw std::logic_error("a box off the grid");
    for (int c = 0; c < m.box_channels; ++c) {
      for (int w = 0; w < m.box_words; ++w) {
        const int64_t at = corner + w;
        const bool valid = inside && at >= 0 && at < m.row_channels() * m.plane && row + c < m.matrix_rows();
        const int word = swizzle ? w ^ c % 8 * 4 : w;
        to.at(target + c * m.box_words + word) = valid ? from.at((row + c) * m.period * m.plane + at) : 0.0;
      }
    }
  }

  void patch(int lines, int channels, int streamed_channels) {
    const int x0 = left_edge();
    for (int i = 0; i < lines * g.planes * channels; ++i) {
      const int plane = i / channels % g.planes, line = g.lines - lines + i / channels / g.planes;
      int64_t flat = 0;
      const bool inside = gathered_line(plane, line, flat);
      const int64_t channel = gathered_channel_ + i % channels,
                    begin = (channel * g.gathered.plane + flat) & (g.gathered.granule - 1);
      const bool tail = channel >= g.gathered.tail();
      for (int w = 0; w < g.line_words - begin; ++w) {
        const bool valid = inside && x0 + w >= 0 && x0 + w < g.extent[2];
        const bool outside = (g.pad[2] > 0 && x0 + w < 0) || (g.right_padding && x0 + w >= g.extent[2]);
        if (tail || outside)
          tile_.at(line_begin(plane, line) + g.gathered.channel_word(i % channels) + begin + w) =
              valid ? gathered_.at(channel * g.gathered.plane + flat + w) : 0.0;
      }
    }
    for (int i = 0; i < g.raw_lines() * streamed_channels; ++i) {
      const int line = i / streamed_channels;
      const int64_t channel = streamed_channel_ + i % streamed_channels;
      if (channel < g.streamed.tail()) continue;
      int64_t flat = 0;
      const bool inside = streamed_line(line / g.fold_taps, line % g.fold_taps, flat);
      const int64_t begin = (channel * g.streamed.plane + flat) & (g.streamed.granule - 1);
      for (int w = 0; w < g.streamed.box_words - begin; ++w) {
        const bool valid = inside && column_block_ * g.row_steps * 8 + w < g.streamed_extent[2];
        raw_.at(line * g.streamed.period * g.streamed.box_pitch + g.streamed.channel_word(i % streamed_channels) +
                begin + w) = valid ? streamed_.at(channel * g.streamed.plane + flat + w) : 0.0;
      }
    }
  }

  const DenseWeightGeometry& g;
  const int tile_columns_;
  const Doubles &gathered_, &streamed_;
  Doubles tile_, raw_;
  int first_line_ = 0, depth_ = 0, row_block_ = 0, column_block_ = 0;
  int64_t gathered_channel_ = 0, streamed_channel_ = 0;
};

/// The whole kernel: every block, every stage of its split.
Doubles execute(const DenseWeightPlan& plan, const ConvProblem& p, const Doubles& x, const Doubles& y) {
  const DenseWeightGeometry& g = plan.geometry;
  Doubles sums(static_cast<std::size_t>(int64_t{g.groups} * g.columns * g.rows), 0.0);
  Stage stage(g, plan.tile_columns, plan.swapped ? y : x, plan.swapped ? x : y);
  for (int64_t block = 0; block < plan.blocks; ++block) {
    int64_t index = block;
    const int m_block = static_cast<int>(index % g.m_blocks);
    index /= g.m_blocks;
    const int first_column = static_cast<int>(index % g.n_blocks) * plan.tile_columns;
    index /= g.n_blocks;
    const int group = static_cast<int>(index % g.groups);
    const int64_t split = index / g.groups;
    const int first_row = g.row_tiles * m_block / g.m_blocks * kTileRows;
    const int end_row = std::min(g.row_tiles * (m_block + 1) / g.m_blocks * kTileRows, g.rows);
    const int columns = std::min(plan.tile_columns, g.columns - first_column);
    const int first_channel = first_row / g.taps, channels = (end_row - 1) / g.taps - first_channel + 1;
    EXPECT_LE(channels, g.channels);
    const int64_t first_stage = g.stages * split / g.splits;
    for (int64_t at = first_stage; at < g.stages * (split + 1) / g.splits; ++at) {
      const int64_t rest = at / g.row_blocks, deep = rest / g.column_blocks;
      stage.fetch(at == first_stage, deep / g.positions[0], static_cast<int>(deep % g.positions[0]),
                  static_cast<int>(at % g.row_blocks), static_cast<int>(rest % g.column_blocks), group, first_channel,
                  channels, first_column, columns);
      for (int k = 0; k < 8 * g.steps; ++k) {
        if (!stage.exists(k / 8, k % 8)) continue;
        for (int row = first_row; row < end_row; ++row) {
          const double a = stage.gathered(row - first_channel * g.taps, k / 8, k % 8);
          for (int c = 0; c < columns; ++c)
            sums[(int64_t{group} * g.columns + first_column + c) * g.rows + row] +=
                a * stage.streamed(c, columns / g.fold_taps, k / 8, k % 8);
        }
      }
    }
  }
  Doubles w(static_cast<std::size_t>(p.w_numel()), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t i = 0; i < sums.size(); ++i)
    w.at(dense_weight_element(g, plan.swapped, static_cast<int64_t>(i))) = sums[i];
  return w;
}

ConvProblem random_problem(std::mt19937& generator) {
  const auto pick = [&](int low, int high) { return low + static_cast<int>(generator() % (high - low + 1)); };
  const int rank = pick(1, 3), groups = pick(1, 2), most = rank == 1 ? 90 : rank == 2 ? 19 : 8;
  const bool strided = pick(0, 1) == 1, dilated = pick(0, 1) == 1;
  Shape x{pick(1, 3), int64_t{groups} * pick(1, 13)}, w{int64_t{groups} * pick(1, 11), x[1] / groups};
  ConvOptions options;
  options.groups = groups;
  for (int axis = 0; axis < rank; ++axis) {
    const int kernel = pick(1, rank == 1 ? 7 : 4), dilation = dilated ? pick(1, 3) : 1;
    w.push_back(kernel);
    x.push_back(std::max(pick(1, most), dilation * (kernel - 1) + 1));
    options.stride.push_back(strided ? pick(1, 3) : 1);
    options.padding.push_back(pick(0, 3));
    options.dilation.push_back(dilation);
  }
  return ConvProblem::conv("test", x, w, options);
}

TEST(DenseWeightPlan, ExecutesAsPlainLoops) {
  std::mt19937 generator(20);
  int swapped = 0, folded = 0, periodic = 0, spread = 0, shared = 0;
  int halves = 0;
  for (int round = 0; round < 160; ++round) {
    const ConvProblem p = random_problem(generator);
    const Doubles x = integers(p.x_numel(), generator), y = integers(p.y_numel(), generator);
    const int multiprocessors = 1 + static_cast<int>(generator() % 9);
    const DenseWeightPlan plan =
        plan_dense_weight(p, round % 4 == 0, round % 3 != 0, multiprocessors, round % 4 == 1 ? 2 : 4);
    ASSERT_TRUE(plan.valid) << p.str();
    ASSERT_LE(plan.shared_bytes, kSharedLimit) << p.str();
    EXPECT_EQ(execute(plan, p, x, y), plain(p, x, y)) << p.str();
    swapped += plan.swapped;
    folded += plan.geometry.fold_axis >= 0;
    periodic += plan.geometry.gathered.period > 1;
    spread += plan.geometry.line_pitch % 32 != 0;
    halves += plan.geometry.gathered.period == 8;
    shared += plan.geometry.fresh < plan.geometry.lines;
    const DenseWeightGeometry& g = plan.geometry;
    EXPECT_GE(g.ring_lines, g.lines + g.fresh * (g.tiles + g.ahead - 1)) << p.str();
  }
  for (const int seen : {swapped, folded, periodic, spread, shared, halves}) EXPECT_GT(seen, 3);
}

/// Whole and odd widths, deep, folded and strided: problems whose tiles the copy engine writes.
TEST(DenseWeightPlan, TilesByTheCopyEngine) {
  std::mt19937 generator(22);
  const struct {
    Shape x, w;
    ConvOptions options;
    int lead;
  } cases[] = {{{1, 16, 20, 68}, {32, 16, 3, 3}, {.padding = {1}}, 0},
               {{2, 8, 12, 62}, {24, 8, 3, 3}, {.padding = {1}}, 2},
               {{1, 8, 8, 61}, {16, 8, 5, 3}, {.padding = {2, 1}}, 3},
               {{1, 8, 3, 5, 68}, {16, 8, 3, 3, 3}, {.padding = {1}}, 0},
               {{1, 12, 13, 129}, {64, 12, 3, 3}, {.stride = {1, 2}, .padding = {1, 0}}, 0}};
  for (const auto& one : cases) {
    const ConvProblem p = ConvProblem::conv("test", one.x, one.w, one.options);
    const Doubles x = integers(p.x_numel(), generator), y = integers(p.y_numel(), generator);
    for (const bool split : {false, true}) {
      const DenseWeightPlan plan = plan_dense_weight(p, split, true, 3);
      EXPECT_TRUE(plan.geometry.direct) << p.str();
      EXPECT_EQ(plan.geometry.lead, plan.swapped ? 0 : one.lead) << p.str();
      EXPECT_EQ(execute(plan, p, x, y), plain(p, x, y)) << p.str();
    }
  }
}

TEST(DenseWeightPlan, AWrongOffsetIsSeen) {
  std::mt19937 generator(21);
  const ConvProblem p = ConvProblem::conv("test", {2, 5, 9, 13}, {7, 5, 3, 3}, {.padding = {1}});
  const Doubles x = integers(p.x_numel(), generator), y = integers(p.y_numel(), generator);
  DenseWeightPlan plan = plan_dense_weight(p, true, true, 4);
  EXPECT_EQ(execute(plan, p, x, y), plain(p, x, y));
  --plan.geometry.tap_offset[2];
  EXPECT_NE(execute(plan, p, x, y), plain(p, x, y));
}

TEST(DenseWeightPlan, RefusesWhatDoesNotFit) {
  const auto valid = [](int64_t length, int64_t dilation) {
    const ConvProblem p = ConvProblem::conv("test", {1, 16, length}, {16, 16, 3}, {.dilation = {dilation}});
    return plan_dense_weight(p, true, true, 132).valid;
  };
  EXPECT_TRUE(valid(1000, 64));
  EXPECT_FALSE(valid(10000, 4000));
  EXPECT_FALSE(valid(int64_t{1} << 28, 1));
}

TEST(DenseWeightPlan, BlocksOfManyRowsAreCutInAnInt) {
  ConvOptions options;
  options.stride = {2};
  const auto problem = ConvProblem::conv("conv", {8, 65536, 13, 13}, {4, 65536, 11, 11}, options);
  const DenseWeightPlan plan = plan_dense_weight(problem, true, true, 132);
  const int64_t product = int64_t{plan.geometry.row_tiles} * plan.geometry.m_blocks;
  EXPECT_TRUE(!plan.valid || product <= std::numeric_limits<int>::max()) << product;
}

}  // namespace
}  // namespace halo::cuda::conv
