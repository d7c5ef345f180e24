#include "dense_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "dense_axis.h"

namespace halo::cuda::conv {
namespace {

constexpr std::size_t kSharedLimit = 227 * 1024;
constexpr std::size_t kSharedNarrow = 195 * 1024;  // copies of 4 and 8 bytes go through L1, which needs room
constexpr int64_t kInt = std::numeric_limits<int>::max();
constexpr int kMaxGroupedColumns = 128;
constexpr int64_t kHaloInFlight = 96 * 1024;             // bytes
constexpr double kClocksPerMs = 1.7e6;                   // H200 under load
constexpr double kFillWordsPerClock[] = {0.9, 1.3, 12};  // words of a halo brought in by copies of 1, 2 and 4
constexpr double kL2BytesPerClock = 22;                  // a multiprocessor's share

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int as_int(int64_t value) { return static_cast<int>(value); }

using Axes = std::array<DenseAxis, 3>;

/// What does not depend on the tile: a choice of groups and of the compiled shape, with its cost a row.
struct Candidate {
  Axes axes;
  int variant = 0;
  int64_t group = 1;  // columns a target channel
  int64_t column_tiles = 1;
  int64_t steps_per_chunk = 0;  // the longest phase's
  int64_t steps = 0;            // k8 steps of all chunks and phases, padded to stages
  bool folded = false;
  int64_t fill_words = 1;
  int64_t chunk_channels = 8;
  int64_t chunks = 1;
  double ms_per_row = 0;  // lower bound for one output position of one multiprocessor
};

double unit_ms(const DenseVariant& v, bool accurate) {  // one m64 x columns x k8 unit on one multiprocessor
  const double tflops = (accurate ? v.tflops_fp32 : v.tflops_tf32) / 132;
  return 2.0 * 64 * v.columns * 8 / tflops / 1e9;
}

class Planner {
 public:
  Planner(const ConvProblem& problem, const ConvConfig& config, int multiprocessors)
      : p_(merge_axes(problem)),
        config_(config),
        forward_(config.pass == ConvPass::Forward),
        accurate_(config.precision == Precision::Float32),
        multiprocessors_(multiprocessors),
        source_channels_(forward_ ? p_.in_channels_per_group() : p_.out_channels_per_group()),
        target_channels_(forward_ ? p_.out_channels_per_group() : p_.in_channels_per_group()) {}

  std::optional<DensePlan> best() {
    if (!within_limits()) return std::nullopt;
    collect_candidates();
    std::sort(candidates_.begin(), candidates_.end(),
              [](const Candidate& a, const Candidate& b) { return a.ms_per_row < b.ms_per_row; });
    const double positions = static_cast<double>(p_.batch * p_.groups) *
                             static_cast<double>(forward_ ? p_.output_positions() : p_.input_positions());
    for (const Candidate& c : candidates_) {
      if (best_ && best_->predicted_ms < c.ms_per_row * positions / multiprocessors_) break;
      search_tiles(c);
    }
    return best_;
  }

 private:
  bool within_limits() const {
    const bool pass = config_.pass == ConvPass::Forward || config_.pass == ConvPass::BackwardInput;
    if (!pass || config_.dtype != DType::Float32) return false;
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
    if (!forward_ && stride > 1) return {stride};
    if (stride > 1 || p_.dilation[axis] > 1 || p_.kernel[axis] == 1) return {1};
    const int64_t extent = forward_ ? p_.output[axis] : p_.input[axis];
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
          const bool phased = !forward_ && strided;
          const bool fits =
              group * target_channels_ <= kMaxGroupedColumns * (phased ? 4 : 1) || (group == 1 && !phased);
          if (fits) add_candidates(make_axes({d, h, w}, false));
        }
      }
    }
    if (!forward_ && strided) add_candidates(make_axes({1, 1, 1}, true));
  }

  Axes make_axes(const std::array<int64_t, 3>& groups, bool separate) const {
    Axes axes;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      axes[axis] = make_dense_axis(p_, axis, forward_, groups[axis], separate && p_.stride[axis] > 1);
    }
    return axes;
  }

  void add_candidates(const Axes& axes) {
    Candidate c;
    c.axes = axes;
    c.group = axes[0].group * axes[1].group * axes[2].group;
    std::size_t phases = 1;
    for (const DenseAxis& a : axes) phases *= a.phases.size();
    if (phases == 0 || phases > kDenseMaxPhases) return;
    for (const bool folded : {false, true}) {
      c.folded = folded;
      c.chunk_channels = !folded ? 8 : source_channels_ < 8 ? source_channels_ : 4;
      c.chunks = ceil_div(source_channels_, c.chunk_channels);
      c.fill_words = fill_words(c);
      c.steps = 0;
      c.steps_per_chunk = 0;
      for_each_phase(axes, [&](const DenseAxis::Taps& d, const DenseAxis::Taps& h, const DenseAxis::Taps& w) {
        const int64_t taps = d.window * h.window * w.window;
        const int64_t steps = folded ? ceil_div(c.chunk_channels * taps, 8) : taps;
        c.steps_per_chunk = std::max(c.steps_per_chunk, steps);
        c.steps += ceil_div(c.chunks * steps, kStepsPerStage) * kStepsPerStage;
      });
      for (std::size_t v = 0; v < std::size(kDenseVariants); ++v) {
        c.variant = static_cast<int>(v);
        c.column_tiles = ceil_div(c.group * target_channels_, kDenseVariants[v].columns);
        if ((accurate_ ? kDenseVariants[v].tflops_fp32 : kDenseVariants[v].tflops_tf32) == 0) continue;
        const double unit = unit_ms(kDenseVariants[v], accurate_);
        const double outputs = static_cast<double>(axes[0].out_step * axes[1].out_step * axes[2].out_step);
        c.ms_per_row = unit / 64 * static_cast<double>(c.column_tiles * c.steps) / outputs;
        candidates_.push_back(c);
      }
    }
  }

  /// Words of one copy into the halo: each row may start anywhere, but every row and channel in the same way, and the
  /// pitches that avoid bank conflicts must allow it.
  int64_t fill_words(const Candidate& c) const {
    const DenseAxis& width = c.axes[2];
    const bool pitches_fit = c.folded && c.chunk_channels != 4 ? width.in_step % 4 != 0 : width.in_step % 2 != 0;
    if (!pitches_fit || width.fill_step != 1) return 1;
    const int64_t plane = width.source * c.axes[1].source * c.axes[0].source;
    const bool all_rows = c.axes[0].fill_step == 1 && c.axes[1].fill_step == 1;
    const bool congruent = width.source % 4 == 0 || (width.source % 2 == 0 && plane % 4 == 0 && all_rows);
    if (config_.alignment >= 16 && congruent && plane < (int64_t{1} << 30)) return 4;  // HaloFiller packs offsets
    return config_.alignment >= 8 && width.source % 2 == 0 ? 2 : 1;
  }

  /// Least halo pitch of `extent` words that equals the source's modulo one copy and leaves its gap between rows.
  static int64_t halo_pitch(const Candidate& c, int64_t extent) {
    int64_t pitch = extent + c.fill_words - 1;
    while ((pitch - c.axes[2].source) % c.fill_words != 0) ++pitch;
    return pitch;
  }
  /// Least number of halo rows a slice that keeps slices alike modulo one copy.
  static int64_t halo_height(const Candidate& c, int64_t extent) {
    while ((extent - c.axes[1].source) * c.axes[2].source % c.fill_words != 0) ++extent;
    return extent;
  }

  template <class F>
  static void for_each_phase(const Axes& axes, const F& f) {
    for (const auto& d : axes[0].phases)
      for (const auto& h : axes[1].phases)
        for (const auto& w : axes[2].phases) f(d, h, w);
  }

  void search_tiles(const Candidate& c) {
    const int64_t runs = kDenseVariants[c.variant].rows() / 8;
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
  }

  void consider(const Candidate& c, const std::array<int64_t, 3>& q, const std::array<int64_t, 3>& tile) {
    const DenseVariant& variant = kDenseVariants[c.variant];
    std::array<int64_t, 3> halo{}, tiles{};
    for (std::size_t axis = 0; axis < 3; ++axis) {
      int64_t window = 0;
      for (const auto& phase : c.axes[axis].phases) window = std::max(window, phase.window);
      halo[axis] = (tile[axis] - 1) * c.axes[axis].in_step + (window - 1) * c.axes[axis].halo_tap_step + 1;
      tiles[axis] = ceil_div(q[axis], tile[axis]);
    }
    halo[2] = halo_pitch(c, halo[2]);
    if (halo[0] > 1) halo[1] = halo_height(c, halo[1]);
    int64_t phases = 1;
    for (const DenseAxis& a : c.axes) phases *= static_cast<int64_t>(a.phases.size());
    const double words = static_cast<double>(halo[0] * halo[1] * halo[2] * c.chunk_channels);
    if (words * 8 > kSharedLimit) return;
    const double tile_count = static_cast<double>(p_.batch * p_.groups * tiles[0] * tiles[1] * tiles[2]);
    const double items = tile_count * static_cast<double>(c.column_tiles * phases);
    if (items > static_cast<double>(kInt)) return;
    const double unit = unit_ms(variant, accurate_) * variant.row_tiles * variant.warpgroups;
    const double steps = static_cast<double>(c.steps) / static_cast<double>(phases);
    for (const int64_t splits : split_choices(c, items, phases)) {
      const double share = static_cast<double>(ceil_div(c.chunks, splits)) / static_cast<double>(c.chunks);
      const double fill = words * static_cast<double>(c.chunks) /
                          kFillWordsPerClock[c.fill_words == 4 ? 2 : c.fill_words - 1] / kClocksPerMs;
      const double lines =
          words / static_cast<double>(halo[2]) * static_cast<double>(halo[2] + 16);  // whole sectors and lines
      const double weight_words = steps * variant.columns * (accurate_ ? 16 : 8);
      const double l2 = 4 * (lines * static_cast<double>(c.chunks) + weight_words) / kL2BytesPerClock / kClocksPerMs;
      // A store of 32 rows is cut where tile rows end, and each piece touches one sector and one line more.
      const auto width = static_cast<double>(tile[2]);
      const double pieces = std::max(1.0, 32 / width) + 8 / width + (tile[2] % 32 != 0 && tile[2] > 16 ? 0.7 : 0.0);
      const double tail = (32 + 8 * pieces) / 32;
      // Neighbouring lanes store `scatter` words apart; lines are whole again soon if the words between are columns of
      // the same tile, and only after a trip to memory if they are other work items.
      const auto scatter = static_cast<double>(c.axes[2].out_step >> span_log2(c));
      const double strewn = phases > 1 ? 2 * scatter : 1 + (scatter - 1) / 2;
      const double epilogue = (variant.rows() * variant.columns * tail * strewn / 5.0 + 2000) / kClocksPerMs;
      const double item = std::max({steps * unit, fill, l2}) * share + epilogue;
      double ms = std::ceil(items * static_cast<double>(splits) / multiprocessors_) * item;
      ms = std::max(ms, p_.bytes(sizeof(float)) / 3.6e9) + 6e-3;
      if (splits > 1) ms += 3e-3 + static_cast<double>((splits + 1) * target_numel()) * 4 / 3e9;
      if (best_ && ms >= best_->predicted_ms) continue;
      if (auto plan = build(c, tile, halo, tiles, splits)) {
        plan->predicted_ms = ms;
        best_ = plan;
      }
    }
  }

  std::vector<int64_t> split_choices(const Candidate& c, double items, int64_t phases) const {
    if (phases > 1 || c.chunks == 1 || items * 2 > multiprocessors_) return {1};
    const auto most = std::min(c.chunks, static_cast<int64_t>(multiprocessors_ / items));
    const int64_t per_split = ceil_div(c.chunks, most);
    return {1, ceil_div(c.chunks, per_split)};
  }

  static int span_log2(const Candidate& c) {
    return std::min(3, std::countr_zero(static_cast<uint64_t>(c.axes[2].group)));
  }

  int64_t target_numel() const { return forward_ ? p_.y_numel() : p_.x_numel(); }

  std::optional<DensePlan> build(const Candidate& c, const std::array<int64_t, 3>& tile,
                                 const std::array<int64_t, 3>& halo, const std::array<int64_t, 3>& tiles,
                                 int64_t splits) const {
    DensePlan plan;
    plan.problem = p_;
    plan.forward = forward_;
    plan.variant = c.variant;
    plan.splits = as_int(splits);
    fill_geometry(plan, c, tile, tiles);
    fill_phases(plan, c);
    if (!fit_shared(plan, c, halo)) return std::nullopt;
    return fill_workspace(plan) ? std::optional(plan) : std::nullopt;
  }

  void fill_geometry(DensePlan& plan, const Candidate& c, const std::array<int64_t, 3>& tile,
                     const std::array<int64_t, 3>& tiles) const {
    DenseParams& k = plan.params;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const DenseAxis& a = c.axes[axis];
      k.source_extent[axis] = as_int(a.source);
      k.target_extent[axis] = as_int(a.target);
      k.out_step[axis] = as_int(a.out_step);
      k.in_step[axis] = as_int(a.in_step);
      k.tap_step[axis] = as_int(a.halo_tap_step);
      k.fill_step[axis] = as_int(a.fill_step);
      k.tile[axis] = as_int(tile[axis]);
      plan.map[axis] = {as_int(p_.stride[axis]), as_int(p_.dilation[axis]), as_int(p_.padding_before[axis]),
                        as_int(p_.kernel[axis]), as_int(a.tap_step),        as_int(a.group)};
      plan.clear_target = plan.clear_target || !a.complete;
    }
    k.source_plane = forward_ ? p_.input_positions() : p_.output_positions();
    k.target_plane = forward_ ? p_.output_positions() : p_.input_positions();
    k.target_numel = plan.splits > 1 ? target_numel() : 0;
    k.channels = as_int(source_channels_);
    k.target_channels = as_int(target_channels_);
    k.folded = c.folded;
    k.last_j = static_cast<uint32_t>((c.axes[0].group - 1) << 20 | (c.axes[1].group - 1) << 10 | (c.axes[2].group - 1));
    k.span_log2 = span_log2(c);
    k.chunk_channels = as_int(c.chunk_channels);
    k.fill_words = as_int(c.fill_words);
    k.chunks = as_int(c.chunks);
    k.chunks_per_split = as_int(ceil_div(c.chunks, plan.splits));
    k.columns_per_group = as_int(c.column_tiles * kDenseVariants[c.variant].columns);
    k.column_tiles = FastDivide(static_cast<uint32_t>(c.column_tiles));
    k.splits = FastDivide(static_cast<uint32_t>(plan.splits));
    k.tiles_d = FastDivide(static_cast<uint32_t>(tiles[0]));
    k.tiles_h = FastDivide(static_cast<uint32_t>(tiles[1]));
    k.tiles_w = FastDivide(static_cast<uint32_t>(tiles[2]));
    k.groups = FastDivide(static_cast<uint32_t>(p_.groups));
    k.by_tile_runs = FastDivide(static_cast<uint32_t>(tile[2] / 8));
    k.by_tile_height = FastDivide(static_cast<uint32_t>(tile[1]));
  }

  void fill_phases(DensePlan& plan, const Candidate& c) const {
    DenseParams& k = plan.params;
    const int parts = accurate_ ? 2 : 1;
    const int64_t stage_floats = int64_t{kStepsPerStage} * kDenseVariants[c.variant].columns * 8 * parts;
    uint32_t count = 0;
    k.table_steps = 0;
    for_each_phase(c.axes, [&](const DenseAxis::Taps& d, const DenseAxis::Taps& h, const DenseAxis::Taps& w) {
      DensePhase& phase = k.phase[count++];
      const DenseAxis::Taps* taps[3] = {&d, &h, &w};
      for (int axis = 0; axis < 3; ++axis) {
        phase.off_min[axis] = as_int(taps[axis]->first);
        phase.window[axis] = as_int(taps[axis]->window);
        phase.j0[axis] = as_int(taps[axis]->j0);
      }
      const int64_t window = d.window * h.window * w.window;
      phase.steps = as_int(c.folded ? ceil_div(c.chunk_channels * window, 8) : window);
      phase.table = k.table_steps;
      phase.weight_offset = plan.weight_floats;
      k.table_steps += phase.steps;
      const int64_t stages = ceil_div(int64_t{k.chunks_per_split} * phase.steps, kStepsPerStage);
      plan.weight_floats += p_.groups * c.column_tiles * plan.splits * stages * stage_floats;
    });
    k.phases = FastDivide(count);
    k.work_items = as_int(p_.batch * p_.groups * k.tiles_d.divisor * k.tiles_h.divisor * k.tiles_w.divisor *
                          c.column_tiles * plan.splits * count);
  }

  /// Halo pitches without bank conflicts, then as many stages as shared memory holds.
  bool fit_shared(DensePlan& plan, const Candidate& c, const std::array<int64_t, 3>& halo) const {
    DenseParams& k = plan.params;
    const int64_t stride = c.axes[2].in_step;
    int64_t pitch = halo[2];
    k.plane_skew = stride % 4 == 2 && !(c.folded && c.chunk_channels != 4) ? 1 : 0;
    const bool taps_follow = c.folded && c.chunk_channels != 4 && stride % 4 == 0;
    const DensePhase& phase = k.phase[0];
    while (taps_follow && pitch % 4 != phase.window[2] % 4) ++pitch;
    const int64_t words = ceil_div(halo[0] * halo[1] * pitch + c.fill_words - 1, c.fill_words) * c.fill_words;
    int64_t plane = words + k.plane_skew;  // a skewed channel must not reach the next
    if (c.folded && c.chunk_channels != 4) {
      // Depth elements are neighbouring taps: with rows 4 words apart, offsets follow the flat tap index modulo 4.
      while (taps_follow && plane % 4 != phase.window[0] * phase.window[1] * phase.window[2] % 4) ++plane;
    } else {  // depth elements are channels: four planes side by side fill the 32 banks
      const int64_t wanted = stride % 2 != 0 ? 8 : stride % 4 == 2 ? 16 : 1;
      while (plane % 32 != wanted && !(wanted == 8 && plane % 32 == 24)) ++plane;
    }
    k.halo_height = as_int(halo[1]);
    k.halo_pitch = as_int(pitch);
    k.halo_words = as_int(words);
    k.plane_pitch = as_int(plane);

    k.halo_stage_words = as_int((plane * k.chunk_channels + k.plane_skew + 3) / 4 * 4);
    k.by_halo_pitch = FastDivide(static_cast<uint32_t>(pitch));
    k.by_halo_height = FastDivide(static_cast<uint32_t>(halo[1]));

    const auto stage_bytes =
        static_cast<int64_t>(kStepsPerStage) * kDenseVariants[plan.variant].columns * 8 * (accurate_ ? 2 : 1) * 4;
    const int64_t halo_bytes = int64_t{k.halo_stage_words} * 4;
    const DenseVariant& variant = kDenseVariants[plan.variant];
    const int64_t turn_words = int64_t{variant.warpgroups} * 4 * dense_turn_words(variant.row_tiles);
    const int64_t fixed = turn_words * 4 + (int64_t{variant.warpgroups} * variant.columns + variant.rows()) * 16 +
                          (int64_t{k.halo_words} + 3) / 4 * 16 + int64_t{k.table_steps} * 32 + 16 * 64;
    // Copies must cover the latency of memory: about 64 KB of halo in flight, then weights.
    const bool roomy = fixed + 3 * halo_bytes + 3 * stage_bytes <= static_cast<int64_t>(kSharedNarrow);
    const int64_t left = static_cast<int64_t>(c.fill_words < 4 && roomy ? kSharedNarrow : kSharedLimit) - fixed;
    const int64_t needed = plan.weight_floats * 4 / stage_bytes;
    const int64_t few_weights = std::min<int64_t>(needed, stage_bytes > 16384 ? 3 : 4);
    const int64_t deep_halo = std::clamp<int64_t>(ceil_div(kHaloInFlight, halo_bytes), 2, 8);
    k.resident = needed <= 48 && needed * stage_bytes + deep_halo * halo_bytes <= left;
    k.halo_stages = as_int(deep_halo);
    while (!k.resident && k.halo_stages > 2 && few_weights * stage_bytes + k.halo_stages * halo_bytes > left) {
      --k.halo_stages;
    }
    const int64_t fit = (left - k.halo_stages * halo_bytes) / stage_bytes;
    k.weight_stages = as_int(k.resident ? needed : std::min<int64_t>(fit, 6));
    if (k.weight_stages < std::min<int64_t>(needed, 2)) return false;
    k.halo_stages = as_int(std::min<int64_t>((left - k.weight_stages * stage_bytes) / halo_bytes, 8));
    plan.shared_bytes = static_cast<std::size_t>(fixed + k.weight_stages * stage_bytes + k.halo_stages * halo_bytes);
    return true;
  }

  bool fill_workspace(DensePlan& plan) const {
    const auto round = [](int64_t bytes) { return static_cast<std::size_t>((bytes + 255) / 256 * 256); };
    plan.column_count = p_.groups * plan.params.columns_per_group;
    plan.weight_bytes = round(plan.weight_floats * 4);
    plan.column_bytes = round(plan.column_count * static_cast<int64_t>(sizeof(DenseColumn)));
    plan.workspace_bytes = plan.weight_bytes + plan.column_bytes;
    if (plan.splits > 1) plan.workspace_bytes += round(plan.splits * target_numel() * 4);
    return plan.workspace_bytes <= kWorkspaceCap;
  }

  ConvProblem p_;
  ConvConfig config_;
  bool forward_, accurate_;
  int multiprocessors_;
  int64_t source_channels_, target_channels_;
  std::vector<Candidate> candidates_;
  std::optional<DensePlan> best_;
};

}  // namespace

std::optional<DensePlan> plan_dense(const ConvProblem& problem, const ConvConfig& config, int multiprocessors) {
  return Planner(problem, config, multiprocessors).best();
}

}  // namespace halo::cuda::conv
