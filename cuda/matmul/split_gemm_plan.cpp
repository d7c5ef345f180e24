#include "split_gemm_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace halo::cuda {
namespace {

constexpr int64_t kExtentLimit = int64_t{1} << 31;
constexpr std::size_t kWorkspaceLimit = std::size_t{256} << 20;
constexpr int64_t kCopyLimit = int64_t{1} << 28;  ///< floats
/// Depth summed in one chain of float32 additions of 32 products each, where the workspace allows more splits.
constexpr int64_t kChain = 16384;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Whether the copy engine can fetch an operand where it lies.
bool is_aligned(const SplitGemmOperand& operand, const float* data, int64_t depth) {
  const bool one_line = (operand.deep ? operand.extent : depth) == 1;
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && (operand.pitch % kSplitGemmAlignment == 0 || one_line) &&
         operand.batch % kSplitGemmAlignment == 0;
}

/// The copy of an operand (SplitGemmPlan::copies_a) and the floats that it takes.
SplitGemmOperand copy_of(SplitGemmOperand operand, int64_t depth, int64_t batch, int64_t& floats) {
  const int64_t length = operand.deep ? depth : operand.extent, lines = operand.deep ? operand.extent : depth;
  operand.pitch = ceil_div(length, kSplitGemmAlignment) * kSplitGemmAlignment;
  const int64_t matrix = lines * operand.pitch;
  floats = matrix * (operand.batch == 0 ? 1 : batch);
  if (operand.batch != 0) operand.batch = matrix;
  return operand;
}

bool in_range(const SplitGemmOperand& operand) {
  constexpr int64_t kPitchLimit = int64_t{1} << 37;
  return operand.extent < kExtentLimit && operand.pitch < kPitchLimit && operand.batch < kPitchLimit;
}

/// Multiprocessor cycles of one stage of a tile, and of its start and results, as measured.
double stage_cycles(SplitGemmTileShape tile) {
  if (tile.rows == 128) return 2000;
  return tile.columns > 64 ? 2500 : 1500;
}
constexpr double kTileCycles = 6500;

double copy_milliseconds(int64_t floats) {
  constexpr double kFloatsPerMs = 3.5e8, kLaunch = 0.004;
  return floats == 0 ? 0 : static_cast<double>(floats) / kFloatsPerMs + kLaunch;
}

/// Chooses the splits of the depth.
void divide(SplitGemmPlan& plan, int multiprocessors) {
  const int64_t outputs = plan.batch * plan.rows.extent * plan.columns.extent;
  const int64_t most = static_cast<int64_t>(kWorkspaceLimit / sizeof(float)) / std::max<int64_t>(outputs, 1);
  const int64_t tiles = plan.batch * plan.row_tiles * plan.column_tiles;
  double best = std::numeric_limits<double>::infinity();
  const int64_t least = ceil_div(plan.depth, kChain);
  for (int64_t splits = 1; splits <= 64 && splits <= plan.stages; ++splits) {
    if (splits > 1 && splits > most) break;
    if (splits < least && splits < std::min(most, plan.stages) && splits < 64) continue;
    const auto waves = static_cast<double>(ceil_div(tiles * splits, multiprocessors));
    const double cycles = waves * (static_cast<double>(ceil_div(plan.stages, splits)) *
                                       stage_cycles({plan.tile_rows, plan.tile_columns}) +
                                   kTileCycles);
    const double reduce = splits == 1 ? 0 : 8000 + static_cast<double>(outputs * (splits + 1)) * 4 / 2000;
    if (cycles + reduce < best) {
      best = cycles + reduce;
      plan.splits = splits;
    }
  }
  plan.tiles = tiles * plan.splits;
  plan.workspace_bytes = plan.splits == 1 ? 0 : static_cast<std::size_t>(plan.splits * outputs) * sizeof(float);
  plan.milliseconds = best / 1.75e6;
}

}  // namespace

SplitGemmPlan plan_split_gemm(const GemmProblem& p, const float* a, const float* b, int multiprocessors) {
  SplitGemmPlan best;
  const bool many = p.batch > 1;
  SplitGemmOperand left{!p.transpose_a, p.m, p.lda, many ? p.batch_a : 0};
  SplitGemmOperand right{p.transpose_b, p.n, p.ldb, many ? p.batch_b : 0};
  if (p.k >= kExtentLimit || p.batch >= kExtentLimit || !in_range(left) || !in_range(right)) return best;
  const bool copies_a = !is_aligned(left, a, p.k), copies_b = !is_aligned(right, b, p.k);
  int64_t copied_a = 0, copied_b = 0;
  if (copies_a) left = copy_of(left, p.k, p.batch, copied_a);
  if (copies_b) right = copy_of(right, p.k, p.batch, copied_b);
  if (std::max(copied_a, copied_b) > kCopyLimit) return best;
  for (const bool swapped : {false, true}) {
    for (const auto [rows, columns] : kSplitGemmTiles) {
      SplitGemmPlan plan;
      plan.copies_a = copies_a;
      plan.copies_b = copies_b;
      plan.swapped = swapped;
      plan.tile_rows = rows;
      plan.tile_columns = columns;
      plan.rows = swapped ? right : left;
      plan.columns = swapped ? left : right;
      plan.depth = p.k;
      plan.batch = p.batch;
      plan.row_step = swapped ? 1 : p.ldc;
      plan.column_step = swapped ? p.ldc : 1;
      plan.batch_step = p.batch_c;
      plan.row_tiles = ceil_div(plan.rows.extent, rows);
      plan.column_tiles = ceil_div(plan.columns.extent, columns);
      plan.stages = ceil_div(plan.depth, kSplitGemmDepth);
      divide(plan, multiprocessors);
      plan.valid = true;
      if (!best.valid || plan.milliseconds < best.milliseconds) best = plan;
    }
  }
  best.milliseconds += copy_milliseconds(copied_a) + copy_milliseconds(copied_b);
  return best;
}

}  // namespace halo::cuda
