#include "split_gemm_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace halo::cuda {
namespace {

constexpr int64_t kExtentLimit = int64_t{1} << 31;
constexpr std::size_t kWorkspaceLimit = std::size_t{256} << 20;
/// Depth summed in one chain of float32 additions of 32 products each, where the workspace allows more splits.
constexpr int64_t kChain = 16384;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool can_fetch(const SplitGemmOperand& operand, const float* data, int64_t depth) {
  const int64_t length = operand.deep ? depth : operand.extent;
  const int64_t lines = operand.deep ? operand.extent : depth;
  const bool one_line = lines == 1;
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && (operand.pitch % 4 == 0 || one_line) &&
         operand.batch % 4 == 0 && length < kExtentLimit && lines < kExtentLimit &&
         operand.pitch < (int64_t{1} << 37) && operand.batch < (int64_t{1} << 37);
}

/// Multiprocessor cycles of one stage of a tile, from the measured inner loop.
double stage_cycles(int columns) { return columns > 64 ? 2550 : 1500; }

/// Chooses the splits of the depth.
void divide(SplitGemmPlan& plan, int multiprocessors) {
  constexpr double kTileCycles = 1500;  // start and results
  const int64_t outputs = plan.batch * plan.rows.extent * plan.columns.extent;
  const int64_t most = static_cast<int64_t>(kWorkspaceLimit / sizeof(float)) / std::max<int64_t>(outputs, 1);
  const int64_t tiles = plan.batch * plan.row_tiles * plan.column_tiles;
  double best = std::numeric_limits<double>::infinity();
  const int64_t least = ceil_div(plan.depth, kChain);
  for (int64_t splits = 1; splits <= 64 && splits <= plan.stages; ++splits) {
    if (splits > 1 && splits > most) break;
    if (splits < least && splits < std::min(most, plan.stages) && splits < 64) continue;
    const auto waves = static_cast<double>(ceil_div(tiles * splits, multiprocessors));
    const double cycles =
        waves * (static_cast<double>(ceil_div(plan.stages, splits)) * stage_cycles(plan.tile_columns) + kTileCycles);
    const double reduce = splits == 1 ? 0 : 8000 + static_cast<double>(outputs * (splits + 1)) * 4 / 2000;
    if (cycles + reduce < best) {
      best = cycles + reduce;
      plan.splits = splits;
    }
  }
  plan.tiles = tiles * plan.splits;
  plan.workspace_bytes = plan.splits == 1 ? 0 : static_cast<std::size_t>(plan.splits * outputs) * sizeof(float);
  plan.milliseconds = best / 1.7e6;
}

}  // namespace

SplitGemmPlan plan_split_gemm(const GemmProblem& p, const float* a, const float* b, int multiprocessors) {
  SplitGemmPlan best;
  const SplitGemmOperand left{!p.transpose_a, p.m, p.lda, p.batch_a}, right{p.transpose_b, p.n, p.ldb, p.batch_b};
  if (!can_fetch(left, a, p.k) || !can_fetch(right, b, p.k) || p.batch >= kExtentLimit) return best;
  for (const bool swapped : {false, true}) {
    for (const int columns : kSplitGemmColumns) {
      SplitGemmPlan plan;
      plan.swapped = swapped;
      plan.tile_columns = columns;
      plan.rows = swapped ? right : left;
      plan.columns = swapped ? left : right;
      plan.depth = p.k;
      plan.batch = p.batch;
      plan.row_step = swapped ? 1 : p.ldc;
      plan.column_step = swapped ? p.ldc : 1;
      plan.batch_step = p.batch_c;
      plan.row_tiles = ceil_div(plan.rows.extent, kSplitGemmRows);
      plan.column_tiles = ceil_div(plan.columns.extent, columns);
      plan.stages = ceil_div(plan.depth, kSplitGemmDepth);
      divide(plan, multiprocessors);
      plan.valid = true;
      if (!best.valid || plan.milliseconds < best.milliseconds) best = plan;
    }
  }
  return best;
}

}  // namespace halo::cuda
