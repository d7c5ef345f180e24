// The index arithmetic of the kernel for small convolutions, run on the CPU: the grid of positions, what tiles read and
// where they write, and the layout of weights, against plain loops. Needs no GPU.
#include <halo/cuda/conv/dense_small/dense_small.cuh>

#include <algorithm>

#include "plain_pass.h"
#include "random_problems.h"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

/// The weight of (row of the tile, channel of the chunk, tap), found in the fragments of the threads.
float weight_of(const SmallParams& p, bool forward, const Values& w, uint32_t block, int row, int channel, int tap) {
  const int thread = row / 16 * 32 + row % 8 * 4 + channel % 4, i = row % 16 / 8 + channel / 4 * 2;
  const float* taps = small_weights(p, forward, w.data(), block, thread, i);
  return taps == nullptr ? 0.0f : taps[forward ? tap : p.taps - 1 - tap];
}

/// Runs the plan on the CPU; results that nobody writes stay NaN.
Values run(const SmallPlan& plan, bool forward, const Values& source, const Values& w, std::size_t count) {
  const SmallParams& p = plan.params;
  Values target(count, std::numeric_limits<float>::quiet_NaN());
  for (int row_tile = 0; row_tile < p.groups * p.row_tiles; ++row_tile) {
    const int group = row_tile / p.row_tiles;
    for (int column = 0; column < plan.tiles * plan.columns; ++column) {
      const SmallPlace place(p, static_cast<uint32_t>(column));
      const int64_t within = small_target(p, place);
      if (within < 0) continue;
      float sums[kSmallRows] = {};
      for (int tap = 0; tap < p.taps; ++tap) {
        const int tw = tap % p.kernel[2], th = tap / p.kernel[2] % p.kernel[1], td = tap / p.kernel[2] / p.kernel[1];
        const int step = td * p.tap_step[0] + th * p.tap_step[1] + tw * p.tap_step[2];
        EXPECT_LT(column % plan.columns + step, p.halo);
        const int64_t from = small_source(p, static_cast<uint32_t>(column + step), group);
        if (from < 0) continue;
        for (int channel = 0; channel < p.channels; ++channel) {
          const auto block = static_cast<uint32_t>(row_tile * p.chunks + channel / 8);
          const float x = source.at(static_cast<std::size_t>(from + channel * p.source_plane));
          for (int row = 0; row < kSmallRows; ++row) {
            sums[row] += x * weight_of(p, forward, w, block, row, channel % 8, tap);
          }
        }
      }
      const int first = row_tile % p.row_tiles * kSmallRows;
      for (int row = 0; row < std::min(kSmallRows, p.target_channels - first); ++row) {
        const int64_t channel = (int64_t{place.n} * p.groups + group) * p.target_channels + first + row;
        target.at(static_cast<std::size_t>(channel * p.target_plane + within)) = sums[row];
      }
    }
  }
  return target;
}

TEST(DenseSmallPlan, GivesThePassOfEveryProblem) {
  int checked = 0;
  unsigned seed = 0;
  for (const ConvProblem& problem : problems(400, 21)) {
    for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput}) {
      ConvConfig config;
      config.pass = pass;
      config.precision = ++seed % 3 == 0 ? Precision::TF32 : Precision::Float32;
      const auto plan = plan_small(problem, config, 132);
      if (!plan.has_value() || problem.flops() > 2e6) continue;
      EXPECT_LE(plan->shared_bytes, 227u * 1024u);
      const bool forward = pass == ConvPass::Forward;
      const Values source = integers(forward ? problem.x_numel() : problem.y_numel(), seed);
      const Values w = integers(problem.w_numel(), seed + 1);
      const Values expected = plain(problem, forward, source, w);
      EXPECT_EQ(run(*plan, forward, source, w, expected.size()), expected) << problem.str() << ' ' << name(pass);
      ++checked;
    }
  }
  EXPECT_GT(checked, 60);
}

}  // namespace
}  // namespace halo::cuda::conv
