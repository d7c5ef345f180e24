#include "plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "build.h"

namespace halo::cuda::conv {
namespace {

constexpr int64_t kInt = std::numeric_limits<int>::max();
constexpr int kMaxGroupedColumns = 128;
constexpr double kClocksPerMs = 1.7e6;                       // H200 under load
constexpr double kFillWordsPerClock[] = {0.9, 1.8, 12, 24};  // words of a halo brought in by copies of 1, 2, 4; boxes
constexpr double kL2BytesPerClock = 22;                      // a multiprocessor's share
constexpr double kStoresNotHidden = 0.25;                    // of the time of results that a further warpgroup stores
constexpr double kFillWordsByPiece = 2.4;                    // where a piece's address serves fewer than four channels
constexpr double kWindowCost = 0.88;                         // of products
constexpr double kFlatCost = 1.03;         // of products: where a line ends within eight rows, banks conflict
constexpr double kCopiesNotHidden = 0.35;  // of the time of halos that warps copy: adds to that of products

using Axes = std::array<DenseAxis, 3>;

double unit_ms(const DenseCandidate& c, bool accurate) {  // one m64 x columns x k8 unit on one multiprocessor
  const DenseVariant& v = c.shape();
  const double tflops = (accurate ? v.tflops_fp32 : v.tflops_tf32) / 132;
  return 2.0 * 64 * v.columns * 8 / tflops / 1e9 * (c.windows ? kWindowCost : 1.0);
}

class Planner {
 public:
  Planner(const ConvProblem& problem, const ConvConfig& config, int multiprocessors, std::optional<int> variant)
      : task_(make_task(problem, config)), config_(config), multiprocessors_(multiprocessors), variant_(variant) {}

  std::optional<DensePlan> best() {
    if (!within_limits()) return std::nullopt;
    collect_candidates();
    std::sort(candidates_.begin(), candidates_.end(), [](const DenseCandidate& a, const DenseCandidate& b) {
      return std::tie(a.ms_per_row, a.rank) < std::tie(b.ms_per_row, b.rank);
    });
    const double positions = static_cast<double>(p_.batch * p_.groups) *
                             static_cast<double>(task_.forward ? p_.output_positions() : p_.input_positions());
    for (const DenseCandidate& c : candidates_) {
      if (best_ && best_->predicted_ms < c.ms_per_row * positions / multiprocessors_) break;
      search_tiles(c);
    }
    return best_;
  }

 private:
  static DenseTask make_task(const ConvProblem& problem, const ConvConfig& config) {
    const bool forward = config.pass == ConvPass::Forward;
    const int64_t in = problem.in_channels_per_group(), out = problem.out_channels_per_group();
    const bool half = is_half(config.dtype);
    return {merge_axes(problem),    forward,      !half && config.precision == Precision::Float32,
            config.alignment >= 16, half ? 2 : 4, forward ? in : out,
            forward ? out : in};
  }

  bool half() const { return task_.element == 2; }

  bool within_limits() const {
    const bool pass = config_.pass == ConvPass::Forward || config_.pass == ConvPass::BackwardInput;
    if (!pass || (config_.dtype != DType::Float32 && !half())) return false;
    if (p_.x_numel() == 0 || p_.y_numel() == 0 || p_.w_numel() == 0) return false;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      for (int64_t value : {p_.stride[axis], p_.dilation[axis] * p_.kernel[axis], p_.padding_before[axis]}) {
        if (value > (1 << 24)) return false;
      }
    }
    return p_.input_positions() + (1 << 25) < kInt && p_.output_positions() + (1 << 25) < kInt && p_.taps() <= 4096 &&
           p_.in_channels < (1 << 24) && p_.out_channels < (1 << 24);
  }

  /// Groupings of one axis: how many neighbouring outputs share a row.
  std::vector<int64_t> groupings(std::size_t axis) const {
    const int64_t stride = p_.stride[axis];
    if (!task_.forward && stride > 1) return {stride};
    if (stride > 1 || p_.dilation[axis] > 1 || p_.kernel[axis] == 1) return {1};
    const int64_t extent = task_.forward ? p_.output[axis] : p_.input[axis];
    std::vector<int64_t> result;
    for (int64_t j = 1; j <= std::min<int64_t>({8, extent, p_.kernel[axis] + 1}); ++j) result.push_back(j);
    return result;
  }

  void collect_candidates() {
    const bool strided = std::any_of(p_.stride.begin(), p_.stride.end(), [](int64_t s) { return s > 1; });
    for (int64_t d : groupings(0)) {
      for (int64_t h : groupings(1)) {
        for (int64_t w : groupings(2)) {
          const int64_t group = d * h * w;
          const bool phased = !task_.forward && strided;
          const bool fits =
              group * task_.target_channels <= kMaxGroupedColumns * (phased ? 4 : 1) || (group == 1 && !phased);
          if (fits) add_candidates(make_axes({d, h, w}, false));
        }
      }
    }
    if (!task_.forward && strided) add_candidates(make_axes({1, 1, 1}, true));
  }

  Axes make_axes(const std::array<int64_t, 3>& groups, bool separate) const {
    Axes axes;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      axes[axis] = make_dense_axis(p_, axis, task_.forward, groups[axis], separate && p_.stride[axis] > 1);
    }
    return axes;
  }

  /// Channels whose halos are in shared memory together: few where many outputs share a row, for a large halo.
  std::vector<int64_t> chunk_choices(int64_t group) const {
    if (task_.source_channels < 8 && task_.accurate) return {8, 1, task_.source_channels};
    if (task_.source_channels < 8) return {8, task_.source_channels};
    const bool few = group >= 8 && !task_.accurate;  // three products a copy are enough to hide it as it is
    return few ? std::vector<int64_t>{8, 4, 2, 1} : std::vector<int64_t>{8, 4};
  }

  void add_candidates(const Axes& axes) {
    DenseCandidate c;
    c.axes = axes;
    c.group = axes[0].group * axes[1].group * axes[2].group;
    std::size_t phases = 1;
    for (const DenseAxis& a : axes) phases *= a.phases.size();
    if (phases == 0 || phases > kDenseMaxPhases) return;
    for (const int64_t channels : chunk_choices(c.group)) {
      c.folded = channels < 8;
      c.chunk_channels = channels;
      c.chunks = ceil_div(task_.source_channels, c.chunk_channels);
      // Of float32's: one by one, channels have more stages, which let the warpgroups drift apart; else many have fewer
      // hand-overs.
      c.rank = !task_.accurate || channels == 1 ? 0 : 8 - static_cast<int>(channels);
      c.fill_words = fill_words(c);
      c.boxable = boxable(c);
      c.steps = 0;
      c.steps_per_chunk = 0;
      c.for_each_phase([&](const DenseAxis::Taps& d, const DenseAxis::Taps& h, const DenseAxis::Taps& w) {
        const int64_t taps = d.window * h.window * w.window;
        const int64_t steps = c.folded ? ceil_div(c.chunk_channels * taps, 8) : taps;
        c.steps_per_chunk = std::max(c.steps_per_chunk, steps);
        c.steps += ceil_div(c.chunks * steps, kStepsPerStage) * kStepsPerStage;
      });
      for (std::size_t v = 0; v < std::size(kDenseVariants); ++v) {
        c.variant = static_cast<int>(v);
        if (c.variant != variant_.value_or(c.variant)) continue;
        c.column_tiles = ceil_div(c.group * task_.target_channels, kDenseVariants[v].columns);
        if ((task_.accurate ? kDenseVariants[v].tflops_fp32 : kDenseVariants[v].tflops_tf32) == 0) continue;
        const bool stem = c.shape().columns == 96 && c.shape().row_tiles == 1;  // sums may end in half a stage
        if (task_.accurate && c.shape().columns == 96 && stem != c.taps_are_depth()) continue;
        if (c.shape().storers && (!c.boxable || c.column_tiles > 1)) continue;
        c.axes = axes;
        c.windows = slides(c);
        if (c.windows) begin_aligned(c.axes[2]);
        const double unit = unit_ms(c, task_.accurate);
        const double outputs = static_cast<double>(axes[0].out_step * axes[1].out_step * axes[2].out_step);
        c.ms_per_row = unit / 64 * static_cast<double>(c.column_tiles * c.steps) / outputs;
        candidates_.push_back(c);
      }
    }
  }

  /// Whether threads can slide along the taps of a kernel row.
  bool slides(const DenseCandidate& c) const {
    const DenseAxis& width = c.axes[2];
    const bool one_phase =
        std::all_of(c.axes.begin(), c.axes.end(), [](const DenseAxis& a) { return a.phases.size() == 1; });
    return dense_may_slide(task_.accurate, c.shape().storers, c.shape().columns) && !c.folded && one_phase &&
           width.in_step == 1 && width.out_step == 1 && width.halo_tap_step == 1 &&
           width.phases[0].window == kWindowTaps;
  }

  /// Moves the first item's rows back, so that every item reads from a multiple of four words on.
  static void begin_aligned(DenseAxis& width) {
    DenseAxis::Taps& taps = width.phases[0];
    const int64_t lead = taps.first & 3;
    width.origin -= lead;
    taps.first -= lead;
    taps.j0 -= lead;
  }

  /// Words of one copy into the halo: each row may start anywhere, but every row and channel in the same way, and the
  /// pitches that avoid bank conflicts must allow it.
  int64_t fill_words(const DenseCandidate& c) const {
    const DenseAxis& width = c.axes[2];
    const bool pitches_fit = width.in_step % (c.taps_are_depth() ? 4 : 2) != 0;
    if (!pitches_fit || width.fill_step != 1) return 1;
    const int64_t plane = width.source * c.axes[1].source * c.axes[0].source;
    const bool all_rows = c.axes[0].fill_step == 1 && c.axes[1].fill_step == 1;
    const bool congruent = width.source % 4 == 0 || (width.source % 2 == 0 && plane % 4 == 0 && all_rows);
    const int alignment = config_.alignment / task_.element;  // elements
    if (alignment >= 8 && width.source % 8 == 0) return 8;
    if (alignment >= 4 && congruent && plane < (int64_t{1} << 30)) return 4;  // HaloFiller packs offsets
    return alignment >= 2 && width.source % 2 == 0 ? 2 : 1;
  }

  /// The copy engine brings boxes out of rows that are whole 16-byte pieces, and leaves no gaps between them.
  bool boxable(const DenseCandidate& c) const {
    const bool all = std::all_of(c.axes.begin(), c.axes.end(), [](const DenseAxis& a) { return a.fill_step == 1; });
    const bool pitches_fit = c.taps_are_depth() || c.axes[2].in_step % 2 != 0;
    return all && pitches_fit && !half() && config_.alignment >= 16 && c.axes[2].source % 4 == 0;
  }

  /// The smallest box that holds `halo` wherever it begins and keeps four channels on different banks, if there is one.
  static std::optional<std::array<int64_t, 3>> box_of(const DenseCandidate& c, const std::array<int64_t, 3>& halo) {
    std::optional<std::array<int64_t, 3>> best;
    const auto words = [](const std::array<int64_t, 3>& b) { return b[0] * b[1] * b[2]; };
    const int64_t least = ceil_div(halo[2] + 3, 4) * 4;
    for (int64_t d = halo[0]; d <= halo[0] + 1; ++d) {
      for (int64_t h = halo[1]; h <= halo[1] + 1; ++h) {
        for (int64_t w = least; w <= std::min(least + 28, kBoxExtent); w += 4) {
          const std::array<int64_t, 3> box{d, h, w};
          if (d > kBoxExtent || h > kBoxExtent || (!c.taps_are_depth() && words(box) % 16 != 8)) continue;
          if (!best || words(box) < words(*best)) best = box;
        }
      }
    }
    return best;
  }

  /// Least halo pitch of `extent` words that equals the source's modulo one copy and leaves its gap between rows.
  static int64_t halo_pitch(const DenseCandidate& c, int64_t extent) {
    int64_t pitch = extent + c.fill_words - 1;
    while ((pitch - c.axes[2].source) % c.fill_words != 0) ++pitch;
    return pitch;
  }
  /// Least number of halo rows a slice that keeps slices alike modulo one copy.
  static int64_t halo_height(const DenseCandidate& c, int64_t extent) {
    while ((extent - c.axes[1].source) * c.axes[2].source % c.fill_words != 0) ++extent;
    return extent;
  }

  void search_tiles(const DenseCandidate& c) {
    const int64_t runs = c.shape().rows() / 8;
    std::array<int64_t, 3> q{};
    for (std::size_t axis = 0; axis < 3; ++axis)
      q[axis] = ceil_div(c.axes[axis].target - c.axes[axis].origin, c.axes[axis].out_step);
    const int64_t widest = std::min(runs, ceil_div(q[2], 8));
    for (int64_t w = 1; w <= widest; ++w) {
      for (int64_t h = 1; h <= std::min(runs / w, q[1]); ++h) {
        const int64_t d = std::min(runs / (w * h), q[0]);
        const bool fuller = (h + 1) * w * d <= runs && h < q[1] && d == std::min(runs / (w * (h + 1)), q[0]);
        if (!fuller) consider(c, q, {d, h, w * 8});
      }
    }
    const DenseVariant& v = c.shape();  // flat tiles: a share of a slice's positions, line after line
    const bool may = dense_may_be_flat(task_.accurate, v.storers, v.columns, v.row_tiles);
    if (!may || q[1] == 1 || q[1] * q[2] > 1 << 24) return;
    for (int64_t d = 1; d <= std::min(runs, q[0]); ++d) {
      const int64_t positions = std::min(runs / d, ceil_div(q[1] * q[2], 8)) * 8;
      if (positions > q[2]) consider(c, q, {d, 1, positions}, q[2]);
    }
  }

  /// Lines that a flat tile touches at most, wherever it begins.
  static int64_t lines_of(const std::array<int64_t, 3>& q, int64_t positions) {
    const int64_t lead = positions < q[1] * q[2] ? q[2] - std::gcd(positions, q[2]) : 0;  // at most, before the tile
    return (lead + positions - 1) / q[2] + 1;
  }

  /// `line`: the tile is flat, of lines as long; else 0.
  void consider(const DenseCandidate& c, const std::array<int64_t, 3>& q, const std::array<int64_t, 3>& tile,
                int64_t line = 0) {
    const DenseVariant& variant = c.shape();
    std::array<int64_t, 3> halo{}, tiles{};
    for (std::size_t axis = 0; axis < 3; ++axis) {
      int64_t window = 0;
      for (const auto& phase : c.axes[axis].phases) window = std::max(window, phase.window);
      const int64_t rows = line == 0 || axis == 0 ? tile[axis] : axis == 1 ? lines_of(q, tile[2]) : line;
      halo[axis] = (rows - 1) * c.axes[axis].in_step + (window - 1) * c.axes[axis].halo_tap_step + 1;
      tiles[axis] = ceil_div(q[axis], tile[axis]);
    }
    if (line > 0) {
      tiles[1] = 1;
      tiles[2] = ceil_div(q[1] * q[2], tile[2]);
    }
    const auto box = c.boxable ? box_of(c, halo) : std::nullopt;
    if (variant.storers && !box) return;
    if (box) {
      halo = *box;
    } else {
      halo[2] = halo_pitch(c, halo[2]);
      if (halo[0] > 1) halo[1] = halo_height(c, halo[1]);
    }
    int64_t phases = 1;
    for (const DenseAxis& a : c.axes) phases *= static_cast<int64_t>(a.phases.size());
    const double words = static_cast<double>(halo[0] * halo[1] * halo[2] * c.chunk_channels);
    if (words * 8 > static_cast<double>(kSharedLimit)) return;
    const double tile_count = static_cast<double>(p_.batch * p_.groups * tiles[0] * tiles[1] * tiles[2]);
    const double items = tile_count * static_cast<double>(c.column_tiles * phases);
    if (items > static_cast<double>(kInt)) return;
    const double unit = unit_ms(c, task_.accurate) * variant.row_tiles * variant.warpgroups;
    const double steps = static_cast<double>(c.steps) / static_cast<double>(phases);
    for (const int64_t splits : split_choices(c, items, phases)) {
      if (splits > 1 && line > 0) continue;  // too few items, not too few rows: measured slower
      const double share = static_cast<double>(ceil_div(c.chunks, splits)) / static_cast<double>(c.chunks);
      const double fill = static_cast<double>(c.chunks) * fill_clocks(c, words, box.has_value()) / kClocksPerMs;
      const double lines =
          words / static_cast<double>(halo[2]) * static_cast<double>(halo[2] + 16);  // whole sectors and lines
      const double weight_words = steps * variant.columns * (task_.accurate ? 16 : 8);
      const double halo_l2 = task_.element * lines * static_cast<double>(c.chunks) / kL2BytesPerClock / kClocksPerMs;
      const double sharing = dense_may_pair(variant.storers, variant.columns) ? 2 : 1;  // blocks
      const double l2 = halo_l2 + 4 * weight_words / sharing / kL2BytesPerClock / kClocksPerMs;
      const double flat = line > 0 ? kFlatCost : 1.0;
      const double products =
          (std::max({steps * unit * flat, fill, l2}) + (box ? 0.0 : kCopiesNotHidden) * halo_l2) * share;
      const double stores = epilogue_ms(c, tile, phases);
      const double item = variant.storers
                              ? std::max(products + hand_over_ms(variant), stores) + kStoresNotHidden * stores
                              : products + stores;
      double ms = std::ceil(items * static_cast<double>(splits) / multiprocessors_) * item;
      ms = std::max(ms, p_.bytes(static_cast<std::size_t>(task_.element)) / 3.6e9) + 6e-3;
      if (phases == 1 && clears(c)) {
        // Lines of rows that have results are read and written again.
        const double rows = 1.0 / static_cast<double>(c.axes[0].out_step * c.axes[1].out_step);
        ms += (1 + rows) * static_cast<double>(task_.target_numel() * task_.element) / 3.6e9;
      }
      if (splits > 1) ms += 3e-3 + static_cast<double>((splits + 1) * task_.target_numel()) * 4 / 3e9;
      if (best_ && ms >= best_->predicted_ms) continue;
      if (auto plan = build_dense(task_, c, {tile, halo, tiles, line, box.has_value(), splits})) {
        plan->predicted_ms = ms;
        best_ = plan;
      }
    }
  }

  /// Clocks until the halo of a chunk has arrived.
  double fill_clocks(const DenseCandidate& c, double words, bool boxed) const {
    if (boxed) return words / kFillWordsPerClock[3];
    const int64_t bytes = c.fill_words * task_.element;
    if (bytes == 2) {  // single half numbers, through registers: latency, the more channels the less
      return c.chunk_channels == 8 ? 1500 + words / 1.6 : words / (c.chunk_channels == 4 ? 0.6 : 0.4);
    }
    const double rate = kFillWordsPerClock[bytes == 16 ? 2 : bytes / 4 - 1] * 4 / task_.element;
    return words / (c.chunk_channels % 4 == 0 ? rate : std::min(rate, kFillWordsByPiece));
  }

  static double epilogue_ms(const DenseCandidate& c, const std::array<int64_t, 3>& tile, int64_t phases) {
    // A store of 32 rows is cut where tile rows end, and each piece touches one sector and one line more.
    const auto width = static_cast<double>(tile[2]);
    const double pieces = std::max(1.0, 32 / width) + 8 / width + (tile[2] % 32 != 0 && tile[2] > 16 ? 0.7 : 0.0);
    const double tail = (32 + 8 * pieces) / 32;
    // Neighbouring lanes store `scatter` words apart; lines are whole again soon if the words between are columns of
    // the same tile, and only after a trip to memory if they are other work items.
    const auto scatter = static_cast<double>(c.axes[2].out_step >> c.span_log2());
    const double strewn = phases > 1 ? 2 * scatter : 1 + (scatter - 1) / 2;
    // Elements a clock: a store of 16 rows of two columns touches more lines than one of 32 rows; positions of a
    // group that follow one another need an address each; four storing warps slow down with the planes they write.
    const DenseVariant& v = c.shape();
    const double alone = v.row_tiles > 1 ? 4.2 : 3.2, meanwhile = v.columns < 128 ? 5.5 : 2.4;
    const double stored = (v.storers ? meanwhile : alone) / (c.span_log2() > 0 ? 1.5 : 1.0);
    return (v.rows() * v.columns * tail * strewn / stored + 2000) / kClocksPerMs;
  }

  /// Whether zeros come first, since some outputs have no taps.
  static bool clears(const DenseCandidate& c) {
    return std::any_of(c.axes.begin(), c.axes.end(), [](const DenseAxis& a) { return !a.complete; });
  }

  static double hand_over_ms(const DenseVariant& v) { return (v.rows() * v.columns / 20.0 + 500) / kClocksPerMs; }

  std::vector<int64_t> split_choices(const DenseCandidate& c, double items, int64_t phases) const {
    if (half() || phases > 1 || c.chunks == 1 || items * 2 > multiprocessors_) return {1};
    const auto most = std::min(c.chunks, static_cast<int64_t>(multiprocessors_ / items));
    const int64_t per_split = ceil_div(c.chunks, most);
    return {1, ceil_div(c.chunks, per_split)};
  }

  DenseTask task_;
  const ConvProblem& p_ = task_.problem;
  ConvConfig config_;
  int multiprocessors_;
  std::optional<int> variant_;
  std::vector<DenseCandidate> candidates_;
  std::optional<DensePlan> best_;
};

}  // namespace

std::optional<DensePlan> plan_dense(const ConvProblem& problem, const ConvConfig& config, int multiprocessors,
                                    std::optional<int> variant) {
  return Planner(problem, config, multiprocessors, variant).best();
}

}  // namespace halo::cuda::conv
