// The index arithmetic of the kernel for few channels out of many, run on the CPU: work items, rows of tiles, columns
// and where their products are added, against plain loops. Needs no GPU.
#include <halo/cuda/conv/spread/spread.cuh>

#include <limits>

#include "plain_pass.h"
#include "random_problems.h"
#include <gtest/gtest.h>

namespace halo::cuda::conv {
namespace {

/// Adds a tile's products to the sums of an item's targets, [channel][plane][line][word].
void add_tile(const SpreadParams& p, const SpreadItem& item, int channel_tile, int plane, int tile,
              const Values& source, const Values& w, std::vector<float>& sums) {
  const int step = kSpreadRows - p.reach[2], first = (item.source_line - item.first_line) * p.line + tile * step;
  const int planes = item.end_plane - item.first_plane;
  std::vector<float> products(static_cast<std::size_t>(kSpreadRows));
  for (int column = 0; column < p.tile_channels * p.taps; ++column) {
    for (int row = 0; row < kSpreadRows; ++row) {
      const int within = spread_row(p, item, tile, row);
      float product = 0;
      for (int channel = 0; within >= 0 && channel < p.channels; ++channel) {
        const int64_t from = spread_weight(p, channel_tile, channel, column);
        if (from < 0) continue;
        const int64_t at = (int64_t{item.n} * p.channels + channel) * p.source_plane +
                           int64_t{plane} * p.source_extent[1] * p.source_extent[2] + within;
        product += source.at(static_cast<std::size_t>(at)) * w.at(static_cast<std::size_t>(from));
      }
      products[static_cast<std::size_t>(row)] = product;
    }
    const int tap = column % p.taps, channel = column / p.taps;
    const int tw = tap % p.kernel[2], th = tap / p.kernel[2] % p.kernel[1], td = tap / p.kernel[2] / p.kernel[1];
    const int to = plane + td * p.dilation[0];
    if (to < item.first_plane || to >= item.end_plane) continue;
    for (int position = 0; position < step; ++position) {
      const int at = first + th * p.dilation[1] * p.line + position;
      if (at < 0 || at >= item.lines * p.line) continue;
      const int row = position + p.reach[2] - tw * p.dilation[2];
      sums.at(static_cast<std::size_t>(((channel * planes) + to - item.first_plane) * item.lines * p.line + at)) +=
          products[static_cast<std::size_t>(row)];
    }
  }
}

Values run(const SpreadPlan& plan, const Values& source, const Values& w, std::size_t count) {
  const SpreadParams& p = plan.params;
  Values target(count, std::numeric_limits<float>::quiet_NaN());
  for (int index = 0; index < p.items * p.channel_tiles; ++index) {
    const SpreadItem item(p, index / p.channel_tiles);
    const int channel_tile = index % p.channel_tiles, planes = item.end_plane - item.first_plane;
    std::vector<float> sums(static_cast<std::size_t>(p.tile_channels * planes * item.lines * p.line));
    for (int plane = item.first_source(p); plane < item.end_source(p); ++plane) {
      for (int tile = 0; tile < item.tiles; ++tile) add_tile(p, item, channel_tile, plane, tile, source, w, sums);
    }
    for (int channel = 0; channel < p.tile_channels; ++channel) {
      const int own = channel_tile * p.tile_channels + channel;
      if (own >= p.target_channels) continue;
      for (int plane = 0; plane < planes; ++plane) {
        for (int line = 0; line < item.lines; ++line) {
          for (int at = 0; at < p.target_extent[2]; ++at) {
            const int word = at - p.shift[2];
            const int64_t row = (int64_t{item.first_plane} + plane + p.shift[0]) * p.target_extent[1] +
                                item.first_line + p.shift[1] + line;
            const int64_t to =
                (int64_t{item.n} * p.target_channels + own) * p.target_plane + row * p.target_extent[2] + at;
            const auto from = static_cast<std::size_t>(((channel * planes + plane) * item.lines + line) * p.line);
            target.at(static_cast<std::size_t>(to)) =
                word < 0 || word >= p.line ? 0 : sums.at(from + static_cast<std::size_t>(word));
          }
        }
      }
    }
  }
  return target;
}

TEST(SpreadPlan, GivesThePassOfEveryProblem) {
  int checked = 0;
  unsigned seed = 0;
  for (const ConvProblem& problem : problems(4000, 23)) {
    for (const ConvPass pass : {ConvPass::Forward, ConvPass::BackwardInput}) {
      ConvConfig config;
      config.pass = pass;
      config.precision = ++seed % 3 == 0 ? Precision::Float32 : Precision::TF32;
      const auto plan = plan_spread(problem, config, 132);
      if (!plan.has_value() || problem.flops() > 2e6) continue;
      EXPECT_LE(plan->shared_bytes, 227u * 1024u);
      const bool forward = pass == ConvPass::Forward;
      const Values source = integers(forward ? problem.x_numel() : problem.y_numel(), seed);
      const Values w = integers(problem.w_numel(), seed + 1);
      const Values expected = plain(problem, forward, source, w);
      EXPECT_EQ(run(*plan, source, w, expected.size()), expected) << problem.str() << ' ' << name(pass);
      ++checked;
    }
  }
  EXPECT_GT(checked, 60);
}

}  // namespace
}  // namespace halo::cuda::conv
