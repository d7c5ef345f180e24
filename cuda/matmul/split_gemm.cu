#include <algorithm>

#include "../launch.h"
#include "../runtime/tensor_map.h"
#include "split_gemm.cuh"
#include "split_gemm_launch.h"

namespace halo::cuda {
namespace {

constexpr int kSumThreads = 256;

/// target = alpha * (the splits' sums, in order) + beta * target. Sums that are not finite are computed again.
__global__ void __launch_bounds__(kSumThreads)
    add_splits(const __grid_constant__ SplitGemmParams p, int64_t lines, int64_t length) {
  const SplitGemmPlan& plan = p.plan;
  const int64_t matrix = lines * length, count = plan.batch * matrix;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * kSumThreads) {
    double sum = 0;
    for (int64_t split = 0; split < plan.splits; ++split) sum += p.partial[split * count + i];
    const int64_t batch = i / matrix, line = i % matrix / length, at = i % length;
    auto result = static_cast<float>(sum);
    if (!isfinite(result)) {
      const int64_t row = plan.swapped ? at : line, column = plan.swapped ? line : at;
      result = split_gemm::plain_sum(p, batch, row, column);
    }
    float& target = p.target[batch * plan.batch_step + line * (plan.swapped ? plan.column_step : plan.row_step) + at];
    result *= p.alpha;
    target = p.beta == 0 ? result : fmaf(p.beta, target, result);
  }
}

/// The copy engine's view of an operand: boxes of `extent` rows (columns) by one stage's depth.
CUtensorMap map_of(const SplitGemmOperand& o, const float* data, const SplitGemmPlan& plan, int extent) {
  const auto unsign = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const auto width = static_cast<cuuint32_t>(extent);
  constexpr cuuint32_t kDepth = kSplitGemmDepth;
  const cuuint64_t matrices = o.batch == 0 ? 1 : unsign(plan.batch);
  // A single line or matrix needs no pitch, but the encoder wants a valid one.
  const int64_t lines = o.deep ? o.extent : plan.depth;
  const cuuint64_t pitch = lines == 1 ? 4 : unsign(o.pitch);
  const cuuint64_t distance = o.batch == 0 ? pitch : unsign(o.batch);
  if (o.deep) {
    return tensor_map(data, {unsign(plan.depth), unsign(o.extent), matrices}, {pitch, distance}, {kDepth, width, 1},
                      true);
  }
  return tensor_map(data, {unsign(o.extent), unsign(plan.depth), matrices}, {pitch, distance}, {width, kDepth, 1},
                    false);
}

template <int Columns, bool Deep>
void multiply(const SplitGemmPlan& plan, SplitGemmParams& params, int multiprocessors, cudaStream_t stream) {
  using Tile = SplitGemmTile<Columns, Deep>;
  params.rows_map = map_of(plan.rows, params.rows, plan, Deep ? kSplitGemmRows : Tile::kRowsPitch);
  params.columns_map = map_of(plan.columns, params.columns, plan, Columns);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(plan.tiles, multiprocessors));
  launch("split_gemm", split_gemm::multiply<Tile>, dim3(blocks), dim3(Tile::kThreads), Tile::kSharedBytes, stream,
         params);
}

}  // namespace

void run_split_gemm(const SplitGemmPlan& plan, const GemmProblem& problem, const float* a, const float* b, float* c,
                    void* workspace, int multiprocessors, cudaStream_t stream) {
  SplitGemmParams params{.rows_map = {},
                         .columns_map = {},
                         .rows = plan.swapped ? b : a,
                         .columns = plan.swapped ? a : b,
                         .target = c,
                         .partial = plan.splits > 1 ? static_cast<float*>(workspace) : nullptr,
                         .alpha = static_cast<float>(problem.alpha),
                         .beta = static_cast<float>(problem.beta),
                         .plan = plan};
  const bool wide = plan.tile_columns == 128;
  const auto& enqueue = plan.rows.deep ? (wide ? multiply<128, true> : multiply<64, true>)
                                       : (wide ? multiply<128, false> : multiply<64, false>);
  enqueue(plan, params, multiprocessors, stream);
  if (plan.splits == 1) return;
  const int64_t count = plan.batch * problem.m * problem.n;
  const int64_t blocks = std::min<int64_t>((count + kSumThreads - 1) / kSumThreads, int64_t{multiprocessors} * 16);
  launch("split_gemm_splits", add_splits, dim3(static_cast<unsigned>(blocks)), dim3(kSumThreads), 0, stream, params,
         problem.m, problem.n);
}

}  // namespace halo::cuda
