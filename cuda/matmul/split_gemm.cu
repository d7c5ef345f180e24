#include <algorithm>
#include <type_traits>

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

/// to = the lines of an operand at multiples of kSplitGemmAlignment floats. Neighbouring threads write neighbouring 16
/// bytes; as many of them share a line as it has such pieces, up to a warp.
__global__ void __launch_bounds__(kSumThreads) align_lines(const __grid_constant__ SplitGemmCopy copy, float* to) {
  const int64_t pieces = (copy.length + 3) / 4, all = copy.matrices * copy.lines;
  const int lanes = 1 << copy.lanes_log, first = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kSumThreads >> copy.lanes_log;
  for (int64_t i = thread >> copy.lanes_log; i < all; i += step) {
    const int64_t matrix = copy.matrices == 1 ? 0 : i / copy.lines, line = i - matrix * copy.lines;
    const float* const from = copy.from + matrix * copy.step + line * copy.pitch;
    auto* const out = reinterpret_cast<float4*>(to) + i * pieces;
#pragma unroll 4
    for (int64_t piece = first; piece < pieces; piece += lanes) {
      float value[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) value[j] = piece * 4 + j < copy.length ? from[piece * 4 + j] : 0.0f;
      out[piece] = make_float4(value[0], value[1], value[2], value[3]);
    }
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

template <int Rows, int Columns, bool Deep>
void multiply(const SplitGemmPlan& plan, SplitGemmParams& params, int multiprocessors, cudaStream_t stream) {
  using Tile = SplitGemmTile<Rows, Columns, Deep>;
  params.rows_map = map_of(plan.rows, params.rows, plan, Deep ? Rows : Tile::kRowsPitch);
  params.columns_map = map_of(plan.columns, params.columns, plan, Columns);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(plan.tiles, multiprocessors));
  launch("split_gemm", split_gemm::multiply<Tile>, dim3(blocks), dim3(Tile::kThreads), Tile::kSharedBytes, stream,
         params);
}

}  // namespace

void align_split_gemm(SplitGemmCopy copy, float* to, int multiprocessors, cudaStream_t stream) {
  while (copy.lanes_log < 5 && (int64_t{4} << copy.lanes_log) < copy.length) ++copy.lanes_log;
  const int64_t threads = copy.matrices * copy.lines << copy.lanes_log;
  const int64_t blocks = std::min<int64_t>((threads + kSumThreads - 1) / kSumThreads, int64_t{multiprocessors} * 32);
  launch("split_gemm_align", align_lines, dim3(static_cast<unsigned>(blocks)), dim3(kSumThreads), 0, stream, copy, to);
}

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
  const auto enqueue = [&]<bool Deep>(std::bool_constant<Deep>) {
    if (plan.tile_rows == 128) return multiply<128, 128, Deep>(plan, params, multiprocessors, stream);
    if (plan.tile_columns == 128) return multiply<192, 128, Deep>(plan, params, multiprocessors, stream);
    return multiply<192, 64, Deep>(plan, params, multiprocessors, stream);
  };
  plan.rows.deep ? enqueue(std::true_type{}) : enqueue(std::false_type{});
  if (plan.splits == 1) return;
  const int64_t count = plan.batch * problem.m * problem.n;
  const int64_t blocks = std::min<int64_t>((count + kSumThreads - 1) / kSumThreads, int64_t{multiprocessors} * 16);
  launch("split_gemm_splits", add_splits, dim3(static_cast<unsigned>(blocks)), dim3(kSumThreads), 0, stream, params,
         problem.m, problem.n);
}

}  // namespace halo::cuda
