#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <utility>

#include "../../runtime/traits.h"
#include "../counts.h"
#include "march.h"

namespace halo::cuda::conv::small_groups {
namespace {

constexpr int64_t kLargest = int64_t{1} << 30;
constexpr int64_t kMostAdditions = 256;  // of a lane in float32

bool fits(const ConvProblem& p, const ConvConfig& config) {
  if (config.dtype == DType::Float64 || config.activation.kind != ActivationKind::None || p.is_depthwise())
    return false;
  if (p.x_numel() == 0 || p.y_numel() == 0 || p.w_numel() == 0) return false;
  const bool few = std::max(p.in_channels_per_group(), p.out_channels_per_group()) <= 4;
  // Threads go down the rows one by one, and read neighbours along the width.
  const bool rows = p.kernel[1] == 1 || (p.stride[1] == 1 && p.dilation[1] == 1);
  const bool columns = p.stride[2] == 1 && (p.kernel[2] == 1 || p.dilation[2] == 1);
  if (!few || !rows || !columns || p.kernel[1] * p.kernel[2] == 1) return false;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const bool small = p.input[axis] < kLargest && p.output[axis] * p.stride[axis] < kLargest &&
                       p.kernel[axis] * p.dilation[axis] < kLargest && std::abs(p.padding_before[axis]) < kLargest;
    if (!small) return false;
    // No sums over several tiles of taps, and one phase.
    const bool one_tile = p.kernel[axis] <= (axis == 0 ? 1 : 3) && p.stride[axis] == 1;
    if (config.pass != ConvPass::BackwardWeight && !one_tile) return false;
  }
  return p.groups < kLargest && p.input[1] * p.input[2] < kLargest && p.stride[1] * p.input[2] < kLargest &&
         p.batch * p.output_positions() < kLargest && p.batch * p.input_positions() < kLargest;
}

/// Tiles of taps along each axis, of source and of result channels.
std::array<int64_t, 5> tiles_of(const MarchShape& shape, const MarchPlan& plan) {
  return {plan.kernel[0], divide_up(plan.kernel[1], shape.height), divide_up(plan.kernel[2], shape.width),
          divide_up(plan.source.channels, shape.sources), divide_up(plan.result.channels, shape.results)};
}

int64_t product(const std::array<int64_t, 5>& tiles) { return tiles[0] * tiles[1] * tiles[2] * tiles[3] * tiles[4]; }

/// The shape that wastes least; forward and backward_input add up nothing over tiles.
int best_shape(const MarchPlan& plan, ConvPass pass) {
  int best = -1;
  int64_t least = 0;
  for (int i = 0; i < to_int(std::ssize(kMarchShapes)); ++i) {
    const std::array<int64_t, 5> tiles = tiles_of(kMarchShapes[i], plan);
    if (pass != ConvPass::BackwardWeight && tiles[0] * tiles[1] * tiles[2] * tiles[3] != 1) continue;
    const int64_t work = product(tiles) * (kMarchShapes[i].sums() + 20);
    if (best < 0 || work < least) best = i, least = work;
  }
  return best;
}

MarchSide side(const int64_t* extents, int64_t channels) {
  return {{to_int(extents[0]), to_int(extents[1]), to_int(extents[2])},
          to_int(channels),
          extents[0] * extents[1] * extents[2]};
}

}  // namespace

MarchPlan march_plan(const ConvProblem& p, const ConvConfig& config) {
  MarchPlan plan{};
  if (!fits(p, config)) return plan;
  plan.flipped = config.pass == ConvPass::BackwardInput;
  plan.source = side(p.input.data(), p.in_channels_per_group());
  plan.result = side(p.output.data(), p.out_channels_per_group());
  plan.weight_source = p.taps();
  plan.weight_result = p.in_channels_per_group() * p.taps();
  plan.weight_group = p.out_channels_per_group() * plan.weight_result;
  if (plan.flipped) {
    std::swap(plan.source, plan.result);
    std::swap(plan.weight_source, plan.weight_result);
  }
  for (std::size_t axis = 0; axis < 3; ++axis) {
    plan.kernel[axis] = to_int(p.kernel[axis]);
    plan.step[axis] = to_int(p.stride[axis]);
    plan.origin[axis] = to_int(plan.flipped ? p.padding_before[axis] - (p.kernel[axis] - 1) : -p.padding_before[axis]);
  }
  plan.dilation_depth = to_int(p.dilation[0]);
  plan.groups = to_int(p.groups);
  plan.shape = best_shape(plan, config.pass);
  if (plan.shape < 0) return plan;
  const MarchShape& shape = kMarchShapes[plan.shape];
  const std::array<int64_t, 5> tiles = tiles_of(shape, plan);
  for (std::size_t axis = 0; axis < 3; ++axis) plan.tap_tiles[axis] = FastDivide(static_cast<uint32_t>(tiles[axis]));
  plan.source_tiles = FastDivide(static_cast<uint32_t>(tiles[3]));
  plan.result_tiles = FastDivide(static_cast<uint32_t>(tiles[4]));
  const int64_t sets = product(tiles) * p.groups;

  // Long strips, but enough of them to fill the GPU twice.
  const int64_t wave = int64_t{device_traits().multiprocessors} * (shape.sums() > kFewSums ? 3 : 4);
  const int64_t columns = divide_up(plan.result.extent[2], kMarchColumns);
  const int64_t strip_columns = p.batch * plan.result.extent[0] * columns;
  plan.strip = config.pass == ConvPass::BackwardWeight ? 64 : 32;
  const auto strips = [&] { return divide_up(plan.result.extent[1], plan.strip); };
  while (plan.strip > 4 && strip_columns * strips() * sets < 2 * wave * kMarchThreads) plan.strip /= 2;
  plan.strip = to_int(divide_up(plan.result.extent[1], strips()));
  plan.columns = FastDivide(static_cast<uint32_t>(columns));
  plan.strips = FastDivide(static_cast<uint32_t>(strips()));
  plan.depths = FastDivide(static_cast<uint32_t>(plan.result.extent[0]));
  plan.items = strip_columns * strips();

  const int64_t shares = divide_up(plan.items, kMarchThreads);  // of one strip a thread
  int64_t splits = std::max<int64_t>(1, wave / sets);
  if (config.pass != ConvPass::BackwardWeight) {
    splits *= 8;
  } else {
    const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(kWorkspaceCap / sizeof(double)) / p.w_numel());
    splits = std::min(std::max(splits, divide_up(shares * plan.strip * kMarchColumns, kMostAdditions)), most);
  }
  plan.splits = to_int(std::min(splits, shares));
  if (sets * plan.splits >= kLargest) return plan;
  plan.blocks = sets * plan.splits;

  // Instructions of a step, counted from the machine code; what memory brings and how much slower stores are, measured.
  const double step = kMarchColumns * shape.sums() + 15 +
                      3.0 * (shape.sources * (shape.width + kMarchColumns - 1) + kMarchColumns * shape.results);
  const double steps = double(divide_up(plan.strip + shape.height - 1, kMarchSteps)) * kMarchSteps;
  const double instructions = double(plan.items) / 32 * double(sets) * (steps * step + 120);
  const bool stores = config.pass != ConvPass::BackwardWeight;
  const double rounds = double(divide_up(shares, plan.splits)) * double(plan.splits) / double(shares);
  const double busy = std::min(1.0, double(plan.blocks) / double(wave)) / (stores ? 1.2 : rounds);
  const double issue = instructions / (device_traits().multiprocessors * 4 * 1.75e6 * shape.issued * busy);
  const double memory = p.bytes(size_of(config.dtype)) / (stores ? 2.8e9 : 3.6e9);
  plan.predicted_ms = 8e-3 + std::max(issue, memory);
  return plan;
}

}  // namespace halo::cuda::conv::small_groups
