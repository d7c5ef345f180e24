#include <algorithm>
#include <array>
#include <utility>

#include "../counts.h"
#include "spread.h"

namespace halo::cuda::conv {
namespace {

constexpr int64_t kSharedLimit = 227 * 1024 - 256;  // bytes; some are the barriers'
constexpr int64_t kMostChannels = 8 * kSpreadSteps;
constexpr int64_t kMostTargets = 16;
constexpr double kWaiting[] = {1.8, 1.95};  // TF32, float32-accurate: of what a tile takes without waiting, as measured
constexpr double kClocksPerMs = 1.7e6;      // H200 under load
constexpr int64_t kMost = int64_t{1} << 30;

bool within_limits(const ConvProblem& p, const ConvConfig& config) {
  const bool forward = config.pass == ConvPass::Forward;
  if (config.dtype != DType::Float32 || (!forward && config.pass != ConvPass::BackwardInput)) return false;
  if (p.groups != 1 || p.x_numel() == 0 || p.y_numel() == 0 || p.w_numel() == 0) return false;
  const int64_t channels = forward ? p.in_channels : p.out_channels;
  const int64_t targets = forward ? p.out_channels : p.in_channels;
  if (channels % 8 != 0 || channels > kMostChannels || targets > kMostTargets || p.batch > kMost) return false;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    const int64_t reach = (p.kernel[axis] - 1) * p.dilation[axis];
    if (p.stride[axis] != 1 || reach > 4096 || std::abs(p.padding_before[axis]) > 4096) return false;
  }
  if ((p.kernel[2] - 1) * p.dilation[2] > kSpreadRows / 4) return false;
  if (std::max(p.input_positions(), p.output_positions()) > kMost / 4) return false;
  return true;
}

class Planner {
 public:
  Planner(const ConvProblem& problem, const ConvConfig& config, int multiprocessors)
      : problem_(problem), accurate_(config.precision == Precision::Float32), multiprocessors_(multiprocessors) {
    SpreadParams& q = plan_.params;
    q.forward = config.pass == ConvPass::Forward;
    q.source_plane = q.forward ? problem.input_positions() : problem.output_positions();
    q.target_plane = q.forward ? problem.output_positions() : problem.input_positions();
    q.channels = static_cast<int>(q.forward ? problem.in_channels : problem.out_channels);
    q.target_channels = static_cast<int>(q.forward ? problem.out_channels : problem.in_channels);
    q.taps = static_cast<int>(problem.taps());
  }

  std::optional<SpreadPlan> best() {
    for (const bool turned : {false, true}) {  // without depth, height may be marched along in its place
      if (turned && (problem_.input[0] != 1 || problem_.output[0] != 1 || problem_.kernel[0] != 1)) break;
      set_axes(turned);
      for (const int columns : kSpreadColumns) {
        if (columns >= plan_.params.taps) search(columns);
      }
    }
    return best_;
  }

 private:
  void set_axes(bool turned) {
    SpreadParams& q = plan_.params;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const std::size_t from = turned && axis < 2 ? 1 - axis : axis;
      q.source_extent[axis] = static_cast<int>(q.forward ? problem_.input[from] : problem_.output[from]);
      q.target_extent[axis] = static_cast<int>(q.forward ? problem_.output[from] : problem_.input[from]);
      q.kernel[axis] = static_cast<int>(problem_.kernel[from]);
      q.dilation[axis] = static_cast<int>(problem_.dilation[from]);
      q.reach[axis] = (q.kernel[axis] - 1) * q.dilation[axis];
      const auto padding = static_cast<int>(problem_.padding_before[from]);
      q.shift[axis] = q.forward ? padding - q.reach[axis] : -padding;
    }
    q.line = q.source_extent[2] + q.reach[2];
    q.by_line = FastDivide(static_cast<uint32_t>(q.line));
    q.ring = q.reach[0] + 1;
  }

  void search(int columns) {
    SpreadParams& q = plan_.params;
    const int most = std::min(columns / q.taps, q.target_channels);
    q.channel_tiles = static_cast<int>(divide_up(q.target_channels, most));
    q.tile_channels = static_cast<int>(divide_up(q.target_channels, q.channel_tiles));
    if (q.channel_tiles > multiprocessors_) return;
    const int64_t fixed = int64_t{columns} * (kSpreadSteps * 8 * (accurate_ ? 2 : 1) + 2 * kSpreadPitch) * 4;
    const int64_t line_bytes = int64_t{q.ring} * q.tile_channels * q.line * 4;
    const int64_t lines = std::min<int64_t>((kSharedLimit - fixed) / line_bytes, q.target_extent[1]);
    for (int64_t cuts = divide_up(q.target_extent[1], std::max<int64_t>(lines, 1)), last = 0; lines > 0 && cuts <= 64;
         ++cuts) {
      const int64_t tile_lines = divide_up(q.target_extent[1], cuts);
      if (tile_lines == last) break;
      last = tile_lines;
      for (int64_t parts = 1, before = 0; parts <= std::min(q.target_extent[0], 64); ++parts) {
        const int64_t tile_planes = divide_up(q.target_extent[0], parts);
        if (tile_planes != before) consider(columns, tile_lines, tile_planes, fixed + line_bytes * tile_lines);
        before = tile_planes;
      }
    }
  }

  void consider(int columns, int64_t tile_lines, int64_t tile_planes, int64_t shared_bytes) {
    SpreadParams& q = plan_.params;
    const int64_t cuts = divide_up(q.target_extent[1], tile_lines), parts = divide_up(q.target_extent[0], tile_planes);
    const int64_t items = problem_.batch * cuts * parts;
    if (items > kMost) return;
    const int64_t places = multiprocessors_ / q.channel_tiles;
    const int64_t planes = std::min<int64_t>(tile_planes + (parts > 1 ? q.reach[0] : 0), q.source_extent[0]);
    const int64_t lines = std::min<int64_t>(tile_lines + (cuts > 1 ? q.reach[1] : 0), q.source_extent[1]);
    const auto tiles = static_cast<double>(planes * divide_up(lines * q.line, kSpreadRows - q.reach[2]));
    const double unit = (accurate_ ? 1.5 : 0.5) * columns;  // clocks of a warpgroup's step on the tensor core
    const double products = kSpreadSteps * std::max(2 * unit, unit + 150) + 300;
    const double loads = kSpreadRows * kSpreadSteps * 8 * 4 / 16.0;
    const auto rounds = static_cast<double>(divide_up(int64_t{q.tile_channels} * q.kernel[0], 4) * q.kernel[1]);
    const double sums = rounds * (70 + 9.0 * q.kernel[2]);
    const double stores = static_cast<double>(tile_planes * tile_lines * q.tile_channels) * (30 + q.line);
    const double item = (tiles * std::max({products, loads, sums}) + stores + 4000) * kWaiting[accurate_ ? 1 : 0];
    const double ms = static_cast<double>(divide_up(items, places)) * item / kClocksPerMs + 6e-3;
    if (best_ && ms >= best_->predicted_ms) return;
    q.tile_lines = static_cast<int>(tile_lines);
    q.tile_planes = static_cast<int>(tile_planes);
    q.lines_of = FastDivide(static_cast<uint32_t>(cuts));
    q.planes_of = FastDivide(static_cast<uint32_t>(parts));
    q.items = static_cast<int>(items);
    plan_.columns = columns;
    plan_.blocks = static_cast<int>(std::min(items, places) * q.channel_tiles);
    plan_.shared_bytes = static_cast<std::size_t>(shared_bytes + 64);
    plan_.predicted_ms = ms;
    best_ = plan_;
  }

  const ConvProblem& problem_;
  bool accurate_;
  int multiprocessors_;
  SpreadPlan plan_;
  std::optional<SpreadPlan> best_;
};

}  // namespace

std::optional<SpreadPlan> plan_spread(const ConvProblem& problem, const ConvConfig& config, int multiprocessors) {
  if (!within_limits(problem, config)) return std::nullopt;
  return Planner(problem, config, multiprocessors).best();
}

}  // namespace halo::cuda::conv
