#include <algorithm>
#include <cstdlib>

#include "../counts.h"
#include "dense_small.h"

namespace halo::cuda::conv {
namespace {

constexpr int kMostRanks = 8;
constexpr std::size_t kSharedLimit = 227 * 1024 - 256;  // bytes; some are the barriers'
constexpr double kClocksPerMs = 1.95e6;

/// One axis of the pass, as a convolution with unit stride.
struct Axis {
  int64_t source, target, padding, kernel, dilation;

  Axis(const ConvProblem& p, std::size_t axis, bool forward)
      : source(forward ? p.input[axis] : p.output[axis]),
        target(forward ? p.output[axis] : p.input[axis]),
        padding(forward ? p.padding_before[axis] : (p.kernel[axis] - 1) * p.dilation[axis] - p.padding_before[axis]),
        kernel(p.kernel[axis]),
        dilation(p.dilation[axis]) {}

  int64_t reach() const { return (kernel - 1) * dilation; }
  /// Positions from row to row: all that windows read of the source, and so many that what they read past the end are
  /// the zeros before the next row.
  int64_t grid() const {
    const int64_t end = target + reach();
    return std::max({target, std::min(end, padding + source), end - std::max<int64_t>(padding, 0), divide_up(end, 2)});
  }
};

/// Blocks of `ranks` in a cluster that run at once, one a multiprocessor: clusters are of neighbours, and some chips
/// have more of them side by side than others (as an H200 said).
int64_t resident_blocks(int ranks, int multiprocessors) {
  constexpr int kOf132[kMostRanks] = {132, 132, 117, 120, 110, 102, 105, 120};
  return std::max<int64_t>(ranks, int64_t{kOf132[ranks - 1]} * multiprocessors / 132);
}

/// Clocks as measured on an H200.
double predict(const SmallPlan& plan, bool accurate, int64_t blocks, int multiprocessors) {
  const SmallParams& q = plan.params;
  const auto columns = static_cast<double>(plan.columns);
  const auto batches = static_cast<double>(divide_up(int64_t{q.lane_chunks} * q.halo * 2, 512));
  const double bytes =
      kSmallWarpgroups * static_cast<double>(int64_t{q.lane_chunks} * (q.taps * kSmallStepBytes + q.halo * 32));
  const double fill = std::max(1000 + 900 * batches, bytes / 55);
  const auto steps = static_cast<double>(divide_up(q.chunks, q.ranks) * q.taps);
  const double products = 1450 + steps * (accurate ? 3 : 1) * std::max(columns / 2 + 2, 22.0);
  const double sums = 1500 + 15 * columns;
  const auto rows = static_cast<double>(divide_up(q.share, kSmallThreads / plan.columns));
  const double results = 700 + 350 * rows;
  const auto waves = static_cast<double>(divide_up(blocks, resident_blocks(q.ranks, multiprocessors)));
  constexpr double kStart = 1500, kLaunchMs = 1e-3;
  return waves * (kStart + fill + products + sums + results) / kClocksPerMs + kLaunchMs;
}

constexpr int64_t kMost = int64_t{1} << 24;  // of any extent and operand: offsets are 32-bit

/// Everything of the parameters that does not depend on how the work is cut. `last` and `reach`: the last position of
/// the grid that has a result, and how much further its window reads.
struct Sizing {
  SmallParams params{};
  int64_t last = 0, reach = 0;
  bool valid = false;

  Sizing(const ConvProblem& p, bool forward) {
    if (std::max({p.batch, p.groups, p.x_numel(), p.y_numel(), p.w_numel()}) > kMost) return;
    if (p.x_numel() == 0 || p.y_numel() == 0 || p.w_numel() == 0) return;
    int64_t step = 1;
    for (std::size_t axis = 3; axis-- > 0;) {
      const Axis a(p, axis, forward);
      const int64_t extent = a.grid();
      if (p.stride[axis] != 1 || std::max({extent, a.reach(), std::abs(a.padding)}) > kMost / step) return;
      params.grid[axis] = FastDivide(static_cast<uint32_t>(extent));
      params.source_extent[axis] = static_cast<int>(a.source);
      params.target_extent[axis] = static_cast<int>(a.target);
      params.padding[axis] = static_cast<int>(a.padding);
      params.kernel[axis] = static_cast<int>(a.kernel);
      params.tap_step[axis] = static_cast<int>(step * a.dilation);
      reach += step * a.reach();
      step *= extent;
    }
    last = p.batch - 1;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      last = last * params.grid[axis].divisor + params.target_extent[axis] - 1;
    }
    if (p.batch * step + reach > kMost) return;
    const int64_t in = p.in_channels_per_group(), out = p.out_channels_per_group();
    params.source_plane = forward ? p.input_positions() : p.output_positions();
    params.target_plane = forward ? p.output_positions() : p.input_positions();
    params.batch = static_cast<int>(p.batch);
    params.groups = static_cast<int>(p.groups);
    params.channels = static_cast<int>(forward ? in : out);
    params.target_channels = static_cast<int>(forward ? out : in);
    params.row_tiles = static_cast<int>(divide_up(params.target_channels, kSmallRows));
    params.chunks = static_cast<int>(divide_up(params.channels, 8));
    params.taps = static_cast<int>(p.taps());
    valid = true;
  }
};

}  // namespace

std::optional<SmallPlan> plan_small(const ConvProblem& p, const ConvConfig& config, int multiprocessors) {
  const bool forward = config.pass == ConvPass::Forward, accurate = config.precision == Precision::Float32;
  if (config.dtype != DType::Float32 || (!forward && config.pass != ConvPass::BackwardInput)) return std::nullopt;
  const Sizing sizing(p, forward);
  if (!sizing.valid) return std::nullopt;
  SmallPlan plan;
  plan.params = sizing.params;
  SmallParams& q = plan.params;
  const int64_t row_tiles = int64_t{q.groups} * q.row_tiles;
  plan.weight_bytes = static_cast<std::size_t>(row_tiles * q.chunks * q.taps) * kSmallStepBytes;

  std::optional<SmallPlan> best;
  for (const int columns : kSmallColumns) {
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
      const int64_t halo = columns + sizing.reach, tiles = sizing.last / columns + 1;
      const int64_t blocks = ranks * tiles * row_tiles;
      if (halo >= 1 << 14 || tiles > 65535 || row_tiles > 65535 || blocks > 4 * multiprocessors) continue;
      q.ranks = ranks;
      q.share = static_cast<int>(divide_up(kSmallRows, ranks));
      q.lane_chunks = static_cast<int>(divide_up(q.chunks, int64_t{ranks} * kSmallWarpgroups));
      q.halo = static_cast<int>(halo);
      q.by_halo = FastDivide(static_cast<uint32_t>(halo));
      if (q.lane_chunks * (halo * 32 + int64_t{q.taps} * kSmallStepBytes) > (1 << 18)) continue;
      plan.shared_bytes = SmallShared(q, columns, accurate ? 2 : 1, 0).end(q);
      if (plan.shared_bytes > kSharedLimit) continue;
      plan.columns = columns;
      plan.tiles = static_cast<int>(tiles);
      plan.predicted_ms = predict(plan, accurate, blocks, multiprocessors);
      if (!best || plan.predicted_ms < best->predicted_ms) best = plan;
    }
  }
  return best;
}

}  // namespace halo::cuda::conv
