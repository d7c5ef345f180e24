// Depthwise convolution with any stride and dilation in tiles of shared memory.
//
// Limits: groups = in_channels, any channel multiplier; strides up to 64; all four floating types; planes below 2^30
// positions; the box that one result reads fits into shared memory. Any kernel, padding, width and alignment. What is
// left is for direct.cu.
#include <algorithm>
#include <iterator>
#include <numeric>

#include "../../runtime/traits.h"
#include "../algorithms.h"
#include "../counts.h"
#include "../plan_key.h"
#include "polyphase_weight.cuh"

namespace halo::cuda::conv {
namespace depthwise {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;
constexpr int64_t kMostSlots = 512;          // of a tile
constexpr int64_t kUsualShared = 54 * 1024;  // bytes of a block: leaves room for four
constexpr int64_t kMultiprocessors = 132;
constexpr int64_t kReserved = 8 * 1024;  // of what a block can have: totals, and the device's own

int64_t floor_divide(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
FastDivide divider(int64_t by) { return FastDivide(static_cast<uint32_t>(by)); }

/// What one axis of the problem asks for.
struct AxisPlan {
  int64_t results;  ///< positions that tiles cover: of y, or of a phase of x
  int64_t first;    ///< the first of them
  int64_t reach;    ///< positions of a phase that taps reach beyond a tile
  int64_t tile;

  int64_t extent() const { return tile + reach; }
  int64_t tiles() const { return divide_up(results, tile); }
};

struct PolyPlan {
  AxisPlan axes[3];
  int64_t stride[3];   ///< of the box
  int64_t lengths[3];  ///< of the box
  int64_t planes = 1, rows = kPolyRows;
  int64_t groups = 0, slots = 0, column = 0, slab = 0, box = 0, shared = 0;
  int64_t rows_pitch = 0;  ///< backward_input: elements between the phases of the rows of x

  int64_t tiles() const { return axes[0].tiles() * axes[1].tiles() * axes[2].tiles(); }
};

int64_t most_shared() { return static_cast<int64_t>(device_traits().block_memory) - kReserved; }
int64_t element_bytes(DType dtype) { return dtype == DType::Float64 ? 8 : 4; }

/// Whether taps that are neighbours in a phase are neighbours there.
bool has_runs(const ConvProblem& p, std::size_t axis) { return p.stride[axis] % p.dilation[axis] == 0; }

PolyTaps poly_taps(const ConvProblem& p, std::size_t axis) {
  const int64_t classes = p.stride[axis] / std::gcd(p.stride[axis], p.dilation[axis]);
  const int64_t most = has_runs(p, axis) && axis == 1 ? kPolyRun : 1;
  PolyTaps t{};
  t.classes = divider(classes);
  t.least = to_int(p.kernel[axis] / classes);
  t.longer = to_int(p.kernel[axis] % classes);
  t.least_runs = to_int(divide_up(t.least, most));
  t.longer_runs = to_int(divide_up(t.least + 1, most));
  t.runs = to_int(classes) * t.least_runs + t.longer * (t.longer_runs - t.least_runs);
  std::fill(std::begin(t.of), std::end(t.of), int8_t{-1});
  for (int64_t c = 0; c < classes; ++c) t.of[c * p.dilation[axis] % p.stride[axis]] = static_cast<int8_t>(c);
  return t;
}

int64_t poly_runs(const ConvProblem& p) { return p.kernel[0] * poly_taps(p, 1).runs * p.kernel[2]; }

/// The least count from `at_least` that leaves `rest` when divided by the 32 banks.
int64_t in_banks(int64_t at_least, int64_t rest) { return at_least + (rest - at_least % 32 + 32) % 32; }

/// Fills in what follows from the tile.
void measure(PolyPlan& plan, const ConvProblem& p, const ConvConfig& config, int64_t runs) {
  const AxisPlan &d = plan.axes[0], &h = plan.axes[1], &w = plan.axes[2];
  const bool input = config.pass == ConvPass::BackwardInput;
  for (std::size_t i = 0; i < 3; ++i) {
    const AxisPlan& axis = plan.axes[i];
    plan.lengths[i] = input ? axis.extent() : (axis.tile - 1) * p.stride[i] + (p.kernel[i] - 1) * p.dilation[i] + 1;
  }
  plan.groups = divide_up(h.tile, plan.rows);
  plan.slots = d.tile * plan.groups * w.tile;
  // Neighbours along the width are in different banks.
  plan.column = (plan.groups * plan.rows + h.reach) | 1;
  plan.slab = d.extent() * w.extent() * plan.column;
  if (plan.stride[2] > 1) plan.slab = in_banks(plan.slab, plan.column * divide_up(32, plan.stride[2]) % 32);
  plan.box = plan.planes * plan.stride[0] * plan.stride[1] * plan.stride[2] * plan.slab;
  const int64_t results = plan.slots * plan.rows, element = element_bytes(config.dtype);
  plan.rows_pitch = input ? in_banks(results, divide_up(32, p.stride[2]) % 32) : 0;
  plan.shared = (plan.box + plan.rows_pitch * p.stride[2]) * element;
  plan.shared += config.pass == ConvPass::BackwardWeight ? results * element : 4 * element * runs * plan.planes;
}

/// Instructions of all tiles of a plane, about: of copies, of products and for each tile. Lanes of different rows read
/// the same banks; a row alone shares no reads.
double effort(const PolyPlan& plan, const ConvProblem& p, ConvPass pass) {
  const auto rows = static_cast<double>(plan.planes * plan.lengths[0] * plan.lengths[1]);
  const double copies = rows * (400 + 7 * static_cast<double>(plan.lengths[2]));
  const auto results = static_cast<double>(divide_up(plan.slots, 32) * 32 * plan.rows);
  const double conflicts = 1 + 0.2 * static_cast<double>(31 / plan.axes[2].tile);
  const bool alone = plan.rows == 1, weight = pass == ConvPass::BackwardWeight;
  const double product = weight ? (alone ? 24 : 4) : (alone ? 8 : 2.2);
  const double products = product * conflicts * static_cast<double>(plan.planes * p.taps());
  const double stores =
      pass == ConvPass::BackwardInput ? 20.0 * static_cast<double>(p.stride[0] * p.stride[1] * p.stride[2]) : 8;
  return static_cast<double>(plan.tiles()) * (copies + results * (products + stores) + 90e3);
}

/// The tiles with the least effort; none (tile 0) where no box fits.
PolyPlan poly_plan(const ConvProblem& p, const ConvConfig& config) {
  PolyPlan plan{}, best{};
  const bool input = config.pass == ConvPass::BackwardInput;
  if (input) plan.planes = p.out_channels_per_group();
  for (std::size_t i = 0; i < 3; ++i) {
    AxisPlan& axis = plan.axes[i];
    axis.first = input ? floor_divide(p.padding_before[i], p.stride[i]) : 0;
    axis.results =
        input ? floor_divide(p.input[i] - 1 + p.padding_before[i], p.stride[i]) - axis.first + 1 : p.output[i];
    axis.reach = (p.kernel[i] - 1) * p.dilation[i] / p.stride[i];
    plan.stride[i] = input ? 1 : p.stride[i];
  }
  AxisPlan &d = plan.axes[0], &h = plan.axes[1], &w = plan.axes[2];
  if (h.results < kPolyRows - 1) plan.rows = 1;
  const int64_t runs = poly_runs(p);
  double least = 0;
  for (const int64_t room : {std::min(kUsualShared, most_shared()), most_shared()}) {
    for (int64_t across = 1; across < 2 * w.results; across *= 2) {
      w.tile = divide_up(w.results, across);
      for (int64_t deep = 1; deep < 2 * d.results; deep *= 2) {
        d.tile = std::min(deep, d.results);
        const int64_t most = std::max<int64_t>(1, kMostSlots / (d.tile * w.tile)) * plan.rows;  // rows of a tile
        for (int64_t down = std::max<int64_t>(1, h.results / most); down <= h.results; ++down) {
          h.tile = std::min(divide_up(divide_up(h.results, down), plan.rows) * plan.rows, h.results);
          measure(plan, p, config, runs);
          if (plan.shared > room || plan.slots > kMostSlots) continue;
          const double cost = effort(plan, p, config.pass);
          if (best.axes[2].tile == 0 || cost < least) {
            best = plan;
            least = cost;
          }
          break;
        }
      }
    }
    if (best.axes[2].tile != 0) return best;
  }
  return best;
}

/// The same, kept where there is a box.
auto kept_poly_plan(const ConvProblem& p, const ConvConfig& config) {
  return kept_plan<poly_plan>(p, config, [](const PolyPlan& plan) { return plan.axes[2].tile != 0; });
}

PolyGeometry poly_geometry(const ConvProblem& p, const ConvConfig& config, const PolyPlan& plan) {
  const bool input = config.pass == ConvPass::BackwardInput;
  const auto axis = [&](std::size_t i) {
    const AxisPlan& a = plan.axes[i];
    PolyAxis result{};
    result.result = to_int(input ? p.input[i] : p.output[i]);
    result.kernel = to_int(p.kernel[i]);
    result.stride = to_int(p.stride[i]);
    result.dilation = to_int(p.dilation[i]);
    result.tile = to_int(a.tile);
    result.reach = to_int(a.reach);
    result.origin = to_int(input ? a.first - a.reach : -p.padding_before[i]);
    result.step = to_int(input ? a.tile : a.tile * p.stride[i]);
    result.first = to_int(a.first * p.stride[i] - p.padding_before[i]);
    result.tiles = divider(a.tiles());
    result.by_stride = divider(p.stride[i]);
    result.by_kernel = divider(p.kernel[i]);
    return result;
  };
  PolyGeometry g{};
  g.depth = axis(0);
  g.height = axis(1);
  g.width = axis(2);
  g.depth_taps = poly_taps(p, 0);
  g.height_taps = poly_taps(p, 1);
  g.width_taps = poly_taps(p, 2);
  g.slots = to_int(plan.slots);
  g.groups = to_int(plan.groups);
  g.by_width = divider(plan.axes[2].tile);
  g.by_groups = divider(plan.groups);
  const auto& source = input ? p.output : p.input;
  PolyBox& b = g.box;
  b.depth = to_int(source[0]);
  b.height = to_int(source[1]);
  b.width = to_int(source[2]);
  b.planes = to_int(plan.planes);
  b.rows = to_int(plan.planes * plan.lengths[0] * plan.lengths[1]);
  b.length = to_int(plan.lengths[2]);
  b.column = to_int(plan.column);
  b.pitch = 1;
  b.slice = to_int(plan.axes[2].extent() * plan.column);
  b.slab = to_int(plan.slab);
  b.box_depth = divider(plan.lengths[0]);
  b.box_height = divider(plan.lengths[1]);
  b.depth_phases = divider(plan.stride[0]);
  b.height_phases = divider(plan.stride[1]);
  b.width_phases = divider(plan.stride[2]);
  return g;
}

/// y's positions of a tile by slots, for backward_weight: the rows of a slot are neighbours, as phases of one element.
PolyBox gradient_box(const ConvProblem& p, const PolyPlan& plan) {
  PolyBox b{};
  b.depth = to_int(p.output[0]);
  b.height = to_int(p.output[1]);
  b.width = to_int(p.output[2]);
  b.planes = 1;
  b.rows = to_int(plan.axes[0].tile * plan.axes[1].tile);
  b.length = to_int(plan.axes[2].tile);
  b.column = to_int(plan.rows);
  b.pitch = to_int(plan.axes[2].tile * plan.rows);
  b.slice = to_int(plan.groups * plan.axes[2].tile * plan.rows);
  b.slab = 1;
  b.box_depth = divider(plan.axes[0].tile);
  b.box_height = divider(plan.axes[1].tile);
  b.depth_phases = b.width_phases = divider(1);
  b.height_phases = divider(plan.rows);
  return b;
}

/// How backward_weight is shared out: warps of a block, sets of runs and splits of a channel.
struct WeightShares {
  int64_t groups, shares, sets, splits;
};

WeightShares weight_shares(const ConvProblem& p, const PolyPlan& plan) {
  constexpr int64_t kBlocksWanted = kMultiprocessors * 16;
  WeightShares s{};
  const int64_t groups = divide_up(poly_runs(p), kPolyWarpRuns);
  s.sets = divide_up(groups, kPolyMostGroups);
  s.groups = divide_up(groups, s.sets);
  s.shares = std::max<int64_t>(1, std::min(8 / s.groups, divide_up(plan.slots, 32)));
  const int64_t most = static_cast<int64_t>(kWorkspaceCap / sizeof(double)) / p.w_numel();
  const int64_t wanted = divide_up(kBlocksWanted, p.out_channels * s.sets);
  s.splits = std::max<int64_t>(1, std::min({p.batch * plan.tiles(), most, wanted}));
  return s;
}

bool supports(const ConvProblem& p, const ConvConfig& config) {
  if (!is_floating_point(config.dtype) || !p.is_depthwise() || p.x_numel() == 0 || p.y_numel() == 0) return false;
  if (p.w_numel() > static_cast<int64_t>(kWorkspaceCap / sizeof(double))) return false;
  double reads = 1;  // positions of the box that one result reads
  for (std::size_t i = 0; i < 3; ++i) {
    reads *= static_cast<double>((p.kernel[i] - 1) * p.dilation[i] + 1);
    if (p.stride[i] > kPolyMostStride) return false;
    const int64_t farthest = p.input[i] + p.output[i] * p.stride[i] + 2 * std::abs(p.padding_before[i]) +
                             p.kernel[i] * p.dilation[i] + 64 * p.stride[i];
    if (farthest >= kMost) return false;
  }
  if (reads * 4 > static_cast<double>(most_shared())) return false;
  if (std::max(p.input_positions(), p.output_positions() * p.out_channels_per_group()) >= kMost) return false;
  const auto plan = kept_poly_plan(p, config);
  if (plan->axes[2].tile == 0) return false;
  return p.batch * std::max(p.in_channels, p.out_channels) * plan->tiles() < kMost;
}

std::size_t workspace_bytes(const ConvProblem& p, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight) return 0;
  return partial_bytes(p, weight_shares(p, *kept_poly_plan(p, config)).splits);
}

/// Seen on an H200: instructions decide, and part of the copies' time is not covered. Where runs take most of the
/// shared memory a multiprocessor has few warps, and these wait for one product after the other.
double predict_ms(const ConvProblem& p, const ConvConfig& config) {
  const auto plan = kept_poly_plan(p, config);
  const int64_t planes = p.batch * (config.pass == ConvPass::BackwardInput ? p.in_channels : p.out_channels);
  const double launches = config.pass == ConvPass::BackwardWeight ? 2 : 1;
  const int64_t resident = std::max<int64_t>(1, most_shared() / (plan->shared + 1024));
  const int64_t rounds = divide_up(planes * plan->tiles(), kMultiprocessors * resident);
  const auto one_after_another =
      static_cast<double>(plan->planes * poly_runs(p) * divide_up(plan->slots, kPolyThreads));
  const double waits = static_cast<double>(rounds) * one_after_another * 1.5e-5;
  const double works = static_cast<double>(planes) * effort(*plan, p, config.pass) * 5e-11;
  return 2.5e-3 * launches + p.bytes(size_of(config.dtype)) / 6e9 + std::max(waits, works);
}

template <class T, int Rows>
void run_as(const ConvProblem& p, const ConvConfig& config, const PolyPlan& plan, const Operands& operands,
            cudaStream_t stream) {
  const PolyGeometry g = poly_geometry(p, config, plan);
  const auto shared = static_cast<std::size_t>(plan.shared);
  if (config.pass == ConvPass::BackwardWeight) {
    const WeightShares s = weight_shares(p, plan);
    PolyWeightParams<T> params{};
    params.geometry = g;
    params.gradients = gradient_box(p, plan);
    params.taps = to_int(p.taps());
    params.runs = to_int(poly_runs(p));
    params.groups = to_int(s.groups);
    params.channels = to_int(p.out_channels);
    params.multiplier = to_int(p.out_channels_per_group());
    params.run_sets = divider(s.sets);
    params.splits = divider(s.splits);
    params.tasks = static_cast<uint32_t>(p.batch * plan.tiles());
    params.box_elements = to_int(plan.box);
    params.gradient_elements = to_int(plan.slots * plan.rows);
    params.x = static_cast<const T*>(operands.x);
    params.y = static_cast<const T*>(operands.y);
    params.partials = static_cast<double*>(operands.workspace);
    launch("conv depthwise polyphase backward_weight", depthwise_polyphase_weight<T, Rows>,
           dim3(static_cast<unsigned>(p.out_channels * s.sets * s.splits)),
           dim3(static_cast<unsigned>(32 * s.groups * s.shares)), shared, stream, params);
    return ordered_sum<T>(p, operands, to_int(s.splits), stream);
  }
  const bool input = config.pass == ConvPass::BackwardInput;
  const auto* const source = static_cast<const T*>(input ? operands.y : operands.x);
  const auto* const weight = static_cast<const T*>(operands.w);
  PolyParams<T> params(g, {Sizes(p), source, weight, !input});
  params.taps = to_int(p.taps());
  params.runs = to_int(poly_runs(p) * plan.planes);
  params.channels = divider(input ? p.in_channels : p.out_channels);
  params.multiplier = divider(p.out_channels_per_group());
  params.source = source;
  params.weight = weight;
  params.result = static_cast<T*>(input ? operands.x : operands.y);
  if (input) {
    params.box_elements = to_int(plan.box);
    params.by_tile_height = divider(plan.axes[1].tile);
    params.rows_pitch = to_int(plan.rows_pitch);
  } else {
    params.bias = static_cast<const T*>(operands.bias);
    params.activation = config.activation;
  }
  const int64_t slots_of_thread = divide_up(plan.slots, kPolyThreads);
  const int64_t threads = std::max<int64_t>(128, divide_up(divide_up(plan.slots, slots_of_thread), 32) * 32);
  const dim3 blocks(static_cast<unsigned>(p.batch * (input ? p.in_channels : p.out_channels) * plan.tiles()));
  launch(input ? "conv depthwise polyphase backward_input" : "conv depthwise polyphase forward",
         input ? depthwise_polyphase_input<T, Rows> : depthwise_polyphase<T, Rows>, blocks,
         dim3(static_cast<unsigned>(threads)), shared, stream, params);
}

void run(const ConvProblem& p, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const auto plan = kept_poly_plan(p, config);
  dispatch_floating("depthwise convolution", config.dtype, [&]<class T>(std::type_identity<T>) {
    if (plan->rows == 1) return run_as<T, 1>(p, config, *plan, operands, stream);
    run_as<T, kPolyRows>(p, config, *plan, operands, stream);
  });
}

}  // namespace
}  // namespace depthwise

const Algorithm kDepthwisePolyphase{"depthwise polyphase", depthwise::supports, depthwise::workspace_bytes,
                                    depthwise::predict_ms, depthwise::run};

}  // namespace halo::cuda::conv
