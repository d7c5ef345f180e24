#include "build.h"

namespace halo::cuda::conv {
namespace {

class Builder {
 public:
  Builder(const DenseTask& task, const DenseCandidate& candidate, const DenseTiling& tiling)
      : task_(task), c_(candidate), t_(tiling) {}

  std::optional<DensePlan> build() {
    plan_.problem = task_.problem;
    plan_.forward = task_.forward;
    plan_.variant = c_.variant;
    plan_.windows = c_.windows;
    plan_.splits = as_int(t_.splits);
    fill_geometry();
    fill_phases();
    fill_halo();
    if (!fit_shared() || !fill_workspace()) return std::nullopt;
    share_items();
    return plan_;
  }

 private:
  void fill_geometry() {
    DenseParams& k = plan_.params;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      const DenseAxis& a = c_.axes[axis];
      k.source_extent[axis] = as_int(a.source);
      k.target_extent[axis] = as_int(a.target);
      k.out_step[axis] = as_int(a.out_step);
      k.in_step[axis] = as_int(a.in_step);
      k.tap_step[axis] = as_int(a.halo_tap_step);
      k.fill_step[axis] = as_int(a.fill_step);
      k.tile[axis] = as_int(t_.tile[axis]);
      k.map[axis] = {as_int(task_.problem.stride[axis]),
                     as_int(task_.problem.dilation[axis]),
                     as_int(task_.problem.padding_before[axis]),
                     as_int(task_.problem.kernel[axis]),
                     as_int(a.tap_step),
                     as_int(a.group)};
      plan_.clear_target = plan_.clear_target || !a.complete;
    }
    k.source_plane = task_.forward ? task_.problem.input_positions() : task_.problem.output_positions();
    k.source_numel = task_.forward ? task_.problem.x_numel() : task_.problem.y_numel();
    k.target_plane = task_.forward ? task_.problem.output_positions() : task_.problem.input_positions();
    k.target_numel = plan_.splits > 1 ? task_.target_numel() : 0;
    k.channels = as_int(task_.source_channels);
    k.target_channels = as_int(task_.target_channels);
    k.folded = c_.folded;
    k.last_j =
        static_cast<uint32_t>((c_.axes[0].group - 1) << 20 | (c_.axes[1].group - 1) << 10 | (c_.axes[2].group - 1));
    k.span_log2 = c_.span_log2();
    const bool rows_follow = task_.aligned && k.out_step[2] == 1;
    k.row_words = rows_follow ? 4 : 1;
    while ((k.target_extent[2] | c_.axes[2].origin) % k.row_words != 0) k.row_words /= 2;
    k.chunk_channels = as_int(c_.chunk_channels);
    k.fill_words = t_.boxed ? 4 : as_int(c_.fill_words);
    k.chunks = as_int(c_.chunks);
    k.chunks_per_split = as_int(ceil_div(c_.chunks, plan_.splits));
    k.column_tiles = FastDivide(static_cast<uint32_t>(c_.column_tiles));
    k.splits = FastDivide(static_cast<uint32_t>(plan_.splits));
    k.tiles_d = FastDivide(static_cast<uint32_t>(t_.tiles[0]));
    k.tiles_h = FastDivide(static_cast<uint32_t>(t_.tiles[1]));
    k.tiles_w = FastDivide(static_cast<uint32_t>(t_.tiles[2]));
    k.groups = FastDivide(static_cast<uint32_t>(task_.problem.groups));
    k.flat = t_.line > 0;
    k.by_slice = FastDivide(static_cast<uint32_t>(t_.tile[1] * t_.tile[2]));
    k.by_line = FastDivide(static_cast<uint32_t>(k.flat ? t_.line : t_.tile[2]));
  }

  void fill_phases() {
    DenseParams& k = plan_.params;
    const int parts = task_.accurate ? 2 : 1;
    const int64_t stage_floats = int64_t{kStepsPerStage} * c_.shape().columns * 8 * parts;
    uint32_t count = 0;
    int64_t shortest = kLongSteps;  // sum, in steps
    k.table_steps = 0;
    c_.for_each_phase([&](const DenseAxis::Taps& d, const DenseAxis::Taps& h, const DenseAxis::Taps& w) {
      DensePhase& phase = k.phase[count++];
      const DenseAxis::Taps* taps[3] = {&d, &h, &w};
      for (int axis = 0; axis < 3; ++axis) {
        phase.off_min[axis] = as_int(taps[axis]->first);
        phase.window[axis] = as_int(taps[axis]->window);
        phase.j0[axis] = as_int(taps[axis]->j0);
      }
      const int64_t window = d.window * h.window * w.window;
      phase.steps = as_int(c_.folded ? ceil_div(c_.chunk_channels * window, 8) : window);
      phase.table = k.table_steps;
      phase.weight_offset = plan_.weight_floats;
      k.table_steps += phase.steps;
      shortest = std::min(shortest, int64_t{k.chunks_per_split} * phase.steps);
      const int64_t stages = ceil_div(int64_t{k.chunks_per_split} * phase.steps, kStepsPerStage);
      plan_.weight_floats += task_.problem.groups * c_.column_tiles * plan_.splits * stages * stage_floats;
    });
    k.long_sums = shortest >= kLongSteps;
    k.phases = FastDivide(count);
    k.tile_count =
        static_cast<uint32_t>(task_.problem.batch * task_.problem.groups * t_.tiles[0] * t_.tiles[1] * t_.tiles[2]);
  }

  /// Halo pitches without bank conflicts. A box comes with its own.
  void fill_halo() {
    DenseParams& k = plan_.params;
    const int64_t stride = c_.axes[2].in_step;
    const bool taps = c_.taps_are_depth();  // depth elements are neighbouring taps, else channels
    const int64_t rows = t_.halo[0] * t_.halo[1];
    int64_t pitch = t_.halo[2];
    k.boxed = t_.boxed;
    k.plane_skew = !t_.boxed && stride % 4 == 2 && !taps ? 1 : 0;
    const bool taps_follow = !t_.boxed && taps && stride % 4 == 0;
    const DensePhase& phase = k.phase[0];
    while (taps_follow && pitch % 4 != phase.window[2] % 4) ++pitch;
    const int64_t fill_words = t_.boxed ? 1 : c_.fill_words;
    const int64_t words = ceil_div(rows * pitch + fill_words - 1, fill_words) * fill_words;
    int64_t plane = words + k.plane_skew;  // a skewed channel must not reach the next
    if (taps) {                            // with rows 4 words apart, offsets follow the flat tap index modulo 4
      while (taps_follow && plane % 4 != phase.window[0] * phase.window[1] * phase.window[2] % 4) ++plane;
    } else if (!t_.boxed) {  // four planes side by side fill the 32 banks
      const int64_t wanted = stride % 2 != 0 ? 8 : stride % 4 == 2 ? 16 : 1;
      while (plane % 32 != wanted && !(wanted == 8 && plane % 32 == 24)) ++plane;
    }
    k.halo_height = as_int(t_.halo[1]);
    k.halo_pitch = as_int(pitch);
    k.halo_words = t_.boxed ? 0 : as_int(words);
    k.plane_pitch = as_int(plane);
    k.halo_stage_words = as_int(ceil_div(plane * k.chunk_channels + k.plane_skew, 32) * 32);
    k.by_halo_pitch = FastDivide(static_cast<uint32_t>(pitch));
    k.by_halo_height = FastDivide(static_cast<uint32_t>(t_.halo[1]));
  }

  /// As many stages as shared memory holds.
  bool fit_shared() {
    DenseParams& k = plan_.params;
    const auto stage_bytes =
        static_cast<int64_t>(kStepsPerStage) * c_.shape().columns * 8 * (task_.accurate ? 2 : 1) * 4;
    const int64_t halo_bytes = int64_t{k.halo_stage_words} * task_.element;
    const DenseVariant& variant = c_.shape();
    const int64_t result_words = variant.storers ? int64_t{variant.columns} * dense_result_pitch(variant.rows())
                                                 : variant.warpgroups * 4 * dense_turn_words(variant.row_tiles);
    const int64_t columns_held = (variant.storers ? 1 : variant.warpgroups) * int64_t{variant.columns};
    const int64_t fixed = result_words * 4 + (columns_held + variant.rows()) * 16 +
                          (int64_t{k.halo_words} + 3) / 4 * 16 + int64_t{k.table_steps} * 32 + 16 * 64;
    // Copies must cover the latency of memory: about 64 KB of halo in flight, then weights.
    const int64_t narrow = kSharedLimit - kSharedForCache;
    const bool roomy = fixed + 3 * halo_bytes + 3 * stage_bytes <= narrow;
    const int64_t left = (!t_.boxed && c_.fill_words * task_.element < 16 && roomy ? narrow : kSharedLimit) - fixed;
    const int64_t needed = plan_.weight_floats * 4 / stage_bytes;
    const int64_t few_weights = std::min<int64_t>(needed, stage_bytes > 16384 ? 3 : 4);
    const int64_t deep_halo = std::clamp<int64_t>(ceil_div(kHaloInFlight, halo_bytes), 2, 8);
    k.resident = needed <= 48 && needed * stage_bytes + deep_halo * halo_bytes <= left;
    k.halo_stages = as_int(deep_halo);
    while (!k.resident && k.halo_stages > 2 && few_weights * stage_bytes + k.halo_stages * halo_bytes > left) {
      --k.halo_stages;
    }
    const int64_t fit = std::max<int64_t>(left - k.halo_stages * halo_bytes, 0) / stage_bytes;
    k.weight_stages = as_int(k.resident ? needed : std::min<int64_t>(fit, 6));
    if (k.weight_stages < std::min<int64_t>(needed, variant.storers ? 3 : 2)) return false;
    k.halo_stages = as_int(std::min<int64_t>((left - k.weight_stages * stage_bytes) / halo_bytes, 8));
    plan_.shared_bytes = static_cast<std::size_t>(fixed + k.weight_stages * stage_bytes + k.halo_stages * halo_bytes);
    return true;
  }

  /// Weights that do not stay may cross the second-level cache once for two blocks.
  void share_items() {
    DenseParams& k = plan_.params;
    const bool may = dense_may_pair(c_.shape().storers, c_.shape().columns);
    k.pair = may && !k.resident && k.groups.divisor == 1 && k.tile_count > 1 ? 1 : 0;
    k.work_items = as_int(ceil_div(k.tile_count, 1 + k.pair) * c_.column_tiles * plan_.splits * k.phases.divisor);
  }

  bool fill_workspace() {
    const auto round = [](int64_t bytes) { return static_cast<std::size_t>((bytes + 255) / 256 * 256); };
    plan_.weight_bytes = round(plan_.weight_floats * 4);
    plan_.workspace_bytes = plan_.weight_bytes;
    if (plan_.splits > 1) plan_.workspace_bytes += round(plan_.splits * task_.target_numel() * 4);
    return plan_.workspace_bytes <= kWorkspaceCap;
  }

  const DenseTask& task_;
  const DenseCandidate& c_;
  const DenseTiling& t_;
  DensePlan plan_;
};

}  // namespace

std::optional<DensePlan> build_dense(const DenseTask& task, const DenseCandidate& candidate,
                                     const DenseTiling& tiling) {
  return Builder(task, candidate, tiling).build();
}

}  // namespace halo::cuda::conv
