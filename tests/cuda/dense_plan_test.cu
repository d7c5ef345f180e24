// The dense engine's index arithmetic, run on the CPU: plans, halo fill, offset table, weights, rows and columns of
// every work item, put together as the kernel does and compared with plain loops. Needs no GPU.
#include <halo/cuda/conv/dense/kernel.cuh>
#include <halo/cuda/conv/dense/plan.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "plain_pass.h"
#include "random_problems.h"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

using Traits = DenseTraits<64, 1, 3, false, 1>;  // the filler needs one; no number of it matters here

/// One item's halo stage as the copying warps leave it; NaN where nothing was written.
template <int Words>
Values fill_stage(const DenseParams& p, const DenseItem& item, int chunk) {
  Values stage(static_cast<std::size_t>(p.halo_stage_words), std::numeric_limits<float>::quiet_NaN());
  std::vector<int> entries(static_cast<std::size_t>(p.halo_words));
  for (int thread = 0; thread < Traits::kFillThreads; ++thread) {
    HaloFiller<Traits, Words>{p, entries.data(), thread}.locate(item);
  }
  const int64_t first = (int64_t{item.n} * p.groups.divisor + item.group) * p.channels + chunk * p.chunk_channels;
  const auto* const from = static_cast<const float*>(p.source);
  for (int c = 0; c < p.chunk_channels; ++c) {
    const float* base = from + (first + c) * p.source_plane;
    const bool real = chunk * p.chunk_channels + c < p.channels;
    for (int piece = 0; piece < p.halo_words / Words; ++piece) {
      const auto source = HaloFiller<Traits, Words>::decode(entries[static_cast<std::size_t>(piece)]);
      if (source.bytes != 0 && real && Words > 1) {  // both sides aligned
        EXPECT_EQ((base - from + source.offset - (source.bytes < 0 ? 2 : 0)) % Words, 0);
        EXPECT_EQ(plane_word(p, c) % Words, 0);
      }
      for (int word = 0; word < Words; ++word) {
        const int skipped = source.bytes < 0 ? 2 : 0;
        const int count = source.bytes < 0 ? 4 : source.bytes / 4;
        const bool exists = real && word >= skipped && word < count;
        stage[static_cast<std::size_t>(plane_word(p, c) + piece * Words + word)] =
            exists ? base[source.offset + word - skipped] : 0.0f;
      }
    }
  }
  return stage;
}

/// The same of a box: what the copy engine leaves.
Values fill_box(const DenseParams& p, const DenseItem& item, int chunk) {
  Values stage(static_cast<std::size_t>(p.halo_stage_words), std::numeric_limits<float>::quiet_NaN());
  const int64_t first = (int64_t{item.n} * p.groups.divisor + item.group) * p.channels;
  const int corner = source_at(p, item, 2) - static_cast<int>(halo_shift(p, item));
  EXPECT_EQ(corner % 4, 0);  // what the engine demands of a corner and of rows
  EXPECT_EQ(p.source_extent[2] % 4, 0);
  EXPECT_EQ(p.halo_pitch % 4, 0);
  for (int word = 0; word < p.plane_pitch * p.chunk_channels; ++word) {
    const int channel = chunk * p.chunk_channels + word / p.plane_pitch, line = word % p.plane_pitch / p.halo_pitch;
    const int at[3] = {source_at(p, item, 0) + line / p.halo_height, source_at(p, item, 1) + line % p.halo_height,
                       corner + word % p.halo_pitch};
    bool exists = channel < p.channels;
    for (int axis = 0; axis < 3; ++axis) exists = exists && at[axis] >= 0 && at[axis] < p.source_extent[axis];
    const int64_t flat = (int64_t{at[0]} * p.source_extent[1] + at[1]) * p.source_extent[2] + at[2];
    stage[static_cast<std::size_t>(word)] =
        exists ? static_cast<const float*>(p.source)[(first + channel) * p.source_plane + flat] : 0.0f;
  }
  return stage;
}

Values fill_stage(const DenseParams& p, const DenseItem& item, int chunk) {
  if (p.boxed) return fill_box(p, item, chunk);
  if (p.fill_words == 4) return fill_stage<4>(p, item, chunk);
  return p.fill_words == 2 ? fill_stage<2>(p, item, chunk) : fill_stage<1>(p, item, chunk);
}

/// The weight that the preparation kernel gives (column, step of the chunk, k).
float weight_of(const DensePlan& plan, const DenseParams& p, const DenseItem& item, int chunk, int column, int step,
                int k, const Values& w) {
  const DensePhase& phase = p.phase[item.phase];
  const DensePlace own = dense_place(p, column);
  const DenseDepth depth = dense_depth(p, phase, step, k);
  const int tap = dense_kernel_tap(p, plan.forward, phase, step, p.folded ? k : 0, own.j);
  const int channel = chunk * p.chunk_channels + depth.channel;
  if (tap < 0 || depth.channel >= p.chunk_channels || channel >= p.channels || own.channel >= p.target_channels) {
    return 0;
  }
  const int64_t group = item.group;
  const int64_t row = plan.forward ? (group * p.target_channels + own.channel) * p.channels + channel
                                   : (group * p.channels + channel) * p.target_channels + own.channel;
  return w[static_cast<std::size_t>(row * plan.problem.taps() + tap)];
}

/// Runs the plan on the CPU. Returns how many outputs were stored more than once.
int64_t run(const DensePlan& plan, const Values& source, const Values& w, Values& target, Values& written) {
  DenseParams p = plan.params;
  p.source = source.data();
  p.target = target.data();
  const DenseVariant& variant = kDenseVariants[plan.variant];
  int64_t twice = 0;
  const auto blocks = uint32_t{1} << p.pair;  // that take an item each
  for (uint32_t work = 0; work < static_cast<uint32_t>(p.work_items) * blocks; ++work) {
    const DenseItem item(p, work / blocks, work % blocks, p.pair);
    const DensePhase& phase = p.phase[item.phase];
    std::vector<double> sums(static_cast<std::size_t>(variant.rows() * variant.columns), 0.0);
    for (int chunk = item.first_chunk; chunk < item.end_chunk; ++chunk) {
      const Values stage = fill_stage(p, item, chunk);
      for (int step = 0; step < phase.steps; ++step) {
        for (int k = 0; k < 8; ++k) {
          const uint32_t offset = depth_offset(p, phase, step, k) / 4 + halo_shift(p, item);
          for (int column = 0; column < variant.columns; ++column) {
            const int in_group = static_cast<int>(item.column_tile) * variant.columns + column;
            const float weight = weight_of(plan, p, item, chunk, in_group, step, k, w);
            if (weight == 0) continue;
            for (int row = 0; row < variant.rows(); ++row) {
              const uint32_t at = DenseRow(p, row, item.before).halo_byte(p) / 4 + offset;
              sums[static_cast<std::size_t>(row * variant.columns + column)] += weight * stage.at(at);
            }
          }
        }
      }
    }
    for (int row = 0; row < variant.rows(); ++row) {
      const DenseRowTarget to(p, item, DenseRow(p, row, item.before));
      if (p.row_words > 1 && to.address >= 0) {
        const auto first = DenseRowTarget(p, item, DenseRow(p, row - row % p.row_words, item.before)).address;
        EXPECT_EQ(to.address, first + row % p.row_words * 4);
        EXPECT_EQ((first - reinterpret_cast<int64_t>(p.target)) % (4 * p.row_words), 0);
      }
      for (int column = 0; column < variant.columns; ++column) {
        const int in_group = static_cast<int>(item.column_tile) * variant.columns + column;
        const DenseColumn c = dense_column(p, dense_place(p, in_group));
        const int64_t address = to.address + c.offset;
        if (address < 0 || !to.has(c.j)) continue;
        const auto index = static_cast<std::size_t>(reinterpret_cast<float*>(address) - target.data());
        twice += written.at(index) != 0 && plan.splits == 1;
        written.at(index) = 1;
        target.at(index) += static_cast<float>(sums[static_cast<std::size_t>(row * variant.columns + column)]);
      }
    }
  }
  return twice;
}

std::vector<ConvProblem> problems(int count) {
  std::vector<ConvProblem> result;
  std::mt19937 generator(3);
  const auto pick = [&](std::initializer_list<int64_t> from) { return from.begin()[generator() % from.size()]; };
  while (static_cast<int>(result.size()) < count) {
    const int rank = 1 + static_cast<int>(generator() % 3);
    const int64_t groups = pick({1, 1, 2}), in = groups * pick({1, 3, 8, 11}), out = groups * pick({1, 3, 9, 16});
    std::vector<int64_t> x{pick({1, 2}), in}, w{out, in / groups};
    ConvOptions options;
    options.groups = groups;
    for (int axis = 0; axis < rank; ++axis) {
      x.push_back(rank == 1   ? pick({1, 13, 70, 98, 300})
                  : rank == 2 ? pick({1, 6, 14, 17, 20, 36})
                              : pick({2, 4, 5, 6, 8}));
      w.push_back(pick({1, 2, 3, 3, 5}));
      options.stride.push_back(pick({1, 1, 1, 2, 3, 4}));
      options.padding.push_back(pick({0, 1, 2, 3}));
      options.dilation.push_back(pick({1, 1, 2, 3}));
    }
    try {
      result.push_back(ConvProblem::conv("test", x, w, options));
    } catch (const ArgumentError&) {  // the kernel does not fit the padded input: draw again
    }
  }
  return result;
}

/// The plan, run on the CPU, against plain loops.
void check_plan(const DensePlan& plan, const ConvProblem& problem, bool forward, unsigned seed) {
  EXPECT_LE(plan.workspace_bytes, kWorkspaceCap);
  EXPECT_LE(plan.shared_bytes, 227u * 1024u);
  const Values source = integers(forward ? problem.x_numel() : problem.y_numel(), seed);
  const Values w = integers(problem.w_numel(), seed + 1);
  const Values expected = plain(problem, forward, source, w);
  // Splits write partial results one behind the other.
  const std::size_t copies = plan.params.target_numel == 0 ? 1 : static_cast<std::size_t>(plan.splits);
  Values target(expected.size() * copies, 0.0f), written(expected.size() * copies, 0.0f);
  EXPECT_EQ(run(plan, source, w, target, written), 0) << problem.str();
  for (std::size_t i = expected.size(); i < target.size(); ++i) target[i % expected.size()] += target[i];
  target.resize(expected.size());
  EXPECT_EQ(target, expected) << problem.str() << " variant " << plan.variant;
  const auto count = std::count(written.begin(), written.end(), 1.0f);
  if (!plan.clear_target) {
    EXPECT_EQ(static_cast<std::size_t>(count), written.size()) << problem.str();
  }
}

TEST(DensePlan, GivesThePassOfEveryProblem) {
  unsigned seed = 0;
  int flat = 0;
  for (const ConvProblem& problem : problems(400)) {
    for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput}) {
      ConvConfig config;
      config.pass = pass;
      config.precision = ++seed % 3 == 0 ? Precision::TF32 : Precision::Float32;
      config.alignment = seed % 5 == 0 ? 4 : 16;
      const auto plan = plan_dense(problem, config, 132);
      if (!plan.has_value()) {  // too many phases of a stride
        EXPECT_GT(problem.stride[0] * problem.stride[1] * problem.stride[2], 16) << problem.str();
        continue;
      }
      check_plan(*plan, problem, pass == ConvPass::Forward, seed);
      flat += plan->params.flat;
    }
  }
  EXPECT_GT(flat, 100);
}

/// Small problems choose few of the compiled shapes by themselves.
TEST(DensePlan, GivesThePassWithEveryCompiledShape) {
  ConvConfig config;
  config.alignment = 16;
  unsigned seed = 0;
  for (std::size_t i = 0; i < std::size(kDenseVariants); ++i) {
    int checked = 0;
    for (const ConvProblem& problem : problems(60)) {
      config.precision = kDenseVariants[i].tflops_fp32 > 0 ? Precision::Float32 : Precision::TF32;
      config.pass = ++seed % 2 == 0 ? ConvPass::Forward : ConvPass::BackwardInput;
      const auto plan = plan_dense(problem, config, 132, static_cast<int>(i));
      if (!plan.has_value()) continue;  // rows that the copy engine does not bring, or too many phases
      check_plan(*plan, problem, config.pass == ConvPass::Forward, seed);
      ++checked;
    }
    EXPECT_GT(checked, 5) << "variant " << i;
  }
}

/// The turned block of 8 columns: every element is stored once, and neighbouring lanes store neighbouring elements of
/// (channel, row, position).
template <int RowTiles>
void check_places() {
  using Store = DenseStore<DenseTraits<64, RowTiles, 3, false, 3>>;
  for (int span = 0; span <= 3; ++span) {
    std::set<std::pair<int, int>> seen;
    int next = 0;
    for (int i = 0; i < Store::kTurns; ++i) {
      for (int lane = 0; lane < 32; ++lane, ++next) {
        const typename Store::Place place(span, i, lane);
        EXPECT_TRUE(seen.emplace(place.row, place.column).second);
        const int width = 1 << span;
        const int flat = (place.column / width * Store::kStoreRows + place.row) * width + place.column % width;
        EXPECT_EQ(flat, next);
        if (span == 0) {  // what store() relies on where a lane keeps its row
          EXPECT_EQ(place.row, lane % Store::kStoreRows);
          EXPECT_EQ(place.column, i * (32 / Store::kStoreRows) + lane / Store::kStoreRows);
        }
      }
    }
    EXPECT_EQ(static_cast<int>(seen.size()), 8 * Store::kStoreRows);
  }
}

TEST(DensePlan, AlignsWindows) {
  std::set<int> seen;  // places in a piece
  unsigned seed = 0;
  for (const ConvProblem& problem : window_problems()) {
    for (const bool forward : {true, false}) {
      ConvConfig config;
      config.pass = forward ? ConvPass::Forward : ConvPass::BackwardInput;
      config.precision = Precision::TF32;
      config.alignment = 16;
      for (std::size_t i = 0; i < std::size(kDenseVariants); ++i) {
        if (!kDenseVariants[i].storers) continue;
        const auto plan = plan_dense(problem, config, 132, static_cast<int>(i));
        if (!plan.has_value() || !plan->windows) continue;
        const DenseParams& p = plan->params;
        seen.insert(-p.phase[0].j0[2]);
        check_plan(*plan, problem, forward, ++seed);
        EXPECT_EQ(halo_shift(p, DenseItem(p, 0, 0, p.pair)), 0u);
        EXPECT_EQ(p.phase[0].steps % kWindowTaps, 0);
        for (int row = 0; row < kDenseVariants[i].rows(); row += 4) {  // neighbours, from an aligned word on
          const uint32_t first = DenseRow(p, row, 0).halo_byte(p);
          EXPECT_EQ(first % 16, 0u);
          for (int j = 1; j < 4; ++j)
            EXPECT_EQ(DenseRow(p, row + j, 0).halo_byte(p), first + static_cast<uint32_t>(j) * 4);
        }
        for (int step = 0; step < p.phase[0].steps; ++step) {
          const auto tap = static_cast<uint32_t>(step % kWindowTaps);
          for (int k = 0; k < 8; ++k) EXPECT_EQ(depth_offset(p, p.phase[0], step, k) % 16, tap * 4 % 16);
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 4u);
}

TEST(DensePlan, TurnsEveryElementOnce) {
  check_places<1>();
  check_places<2>();
}

}  // namespace
}  // namespace halo::cuda::conv
