// backward_weight of depthwise convolutions with several rows of taps at memory speed, by depthwise_rows.cuh.
//
// Limits: compute capability 9.0; float32; groups = in_channels, any channel multiplier; stride and dilation 1 on every
// axis with more than one tap; kernels of 3 rows and 3, 5 or 7 columns, 5 x 5 and 7 x 7; rows of an even number of
// elements, of whole granules where columns are padded; tensors of whole granules.
#include <algorithm>

#include "../launch.h"
#include "../runtime/traits.h"
#include "algorithms.h"
#include "depthwise_rows.cuh"

namespace halo::cuda::conv {
namespace depthwise {
namespace {

constexpr int64_t kSize = sizeof(float), kGranule = 16 / kSize;  ///< elements of a granule
constexpr int64_t kMostColumns = kPair * 32 * kRowsUsers;
constexpr int64_t kLeastShare = 16, kMostShare = 2048;  ///< rows of a block: more would add too many terms in float32
constexpr int kSharedBytes = 227 << 10, kStaticBytes = 3 << 10;  ///< of a multiprocessor; of a block beside the ring

template <int March, int Width>
struct RowTaps {};

/// Calls f with the rows and columns of taps as constants; false if there is no kernel for them.
template <class F>
bool with_rows_of_taps(const MarchShape& shape, F&& f) {
  const auto is = [&]<int March, int Width>(RowTaps<March, Width> taps) {
    return shape == MarchShape{March, 1, Width} && (f(taps), true);
  };
  return is(RowTaps<3, 3>{}) || is(RowTaps<3, 5>{}) || is(RowTaps<3, 7>{}) || is(RowTaps<5, 5>{}) ||
         is(RowTaps<7, 7>{});
}

/// Whether windows read zeros beside rows.
bool is_padded(const ConvProblem& problem) {
  return problem.padding_before[2] != 0 || problem.output[2] + problem.kernel[2] - 1 > problem.input[2];
}

/// Warps of a block that compute.
int users(const RowsParams& p) { return (p.tile + 32 * kPair - 1) / (32 * kPair); }

RowsParams plan(const ConvProblem& problem) {
  const MarchShape shape = march_shape(problem);
  const auto divider = [](int64_t by) { return FastDivide(static_cast<uint32_t>(by)); };
  const auto to_int = [](int64_t value) { return static_cast<int>(value); };
  const auto divide_up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const auto up = [&](int64_t value, int64_t of) { return divide_up(value, of) * of; };
  RowsParams p;
  p.x.channels = problem.in_channels;
  p.y.channels = problem.out_channels;
  p.x.height = to_int(problem.input[1]);
  p.y.height = to_int(problem.output[1]);
  p.x.width = to_int(problem.input[2]);
  p.y.width = to_int(problem.output[2]);
  p.multiplier = to_int(problem.out_channels_per_group());
  p.fold = divider(problem.output[0]);
  p.height = divider(problem.output[1]);
  const int64_t tiles = divide_up(p.y.width, kMostColumns);
  p.tile = to_int(up(divide_up(p.y.width, tiles), kGranule));
  p.column_tiles = divider(tiles);
  p.pad_rows = to_int(problem.padding_before[1]);
  p.pad_columns = to_int(problem.padding_before[2]);
  p.margin = to_int(up(p.pad_columns, kGranule));
  if (is_padded(problem)) p.x.line = p.x.width * kSize % kBoxLine == 0 ? kBoxLine : kGranule * kSize;
  // As in row_box.h, rows of any alignment arrive by whole granules.
  const auto fill = [&](RowsSide& side, int64_t columns) {
    const int64_t row = columns * kSize + 30;
    side.pitch = to_int(row + ((side.width * kSize - row) % side.line + side.line) % side.line);
    side.bytes = to_int(up(shape.march * side.pitch + side.line, kBoxLine));
  };
  fill(p.x, p.margin + p.tile + up(shape.width - 1, kGranule));
  fill(p.y, p.tile);
  const int blocks = std::clamp(16 / users(p), 1, 12);  // of a multiprocessor
  p.stages =
      std::clamp((kSharedBytes / blocks - kZeroBytes - kStaticBytes) / (p.x.bytes + p.y.bytes), 2, kMostRowStages);
  p.rows = to_int(problem.batch * problem.output[0] * problem.output[1]);
  const int64_t places = device_traits().multiprocessors * blocks;  // all blocks at once
  const int64_t splits = std::clamp<int64_t>(places / (problem.out_channels * tiles), divide_up(p.rows, kMostShare),
                                             divide_up(p.rows, kLeastShare));
  p.share = to_int(divide_up(p.rows, splits));
  p.splits = divider(divide_up(p.rows, p.share));
  return p;
}

int splits(const RowsParams& p) { return static_cast<int>(p.column_tiles.divisor * p.splits.divisor); }

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig&) {
  return static_cast<std::size_t>(problem.w_numel() * splits(plan(problem))) * sizeof(double);
}

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight || config.dtype != DType::Float32 || config.alignment < 16) return false;
  const MarchShape shape = march_shape(problem);
  if (!problem.is_depthwise() || !march_fits(problem) || !device_traits().is_hopper()) return false;
  if (!with_rows_of_taps(shape, [](auto) {})) return false;
  const int64_t x = problem.x_numel(), y = problem.y_numel(), pad = problem.padding_before[2];
  return x > 0 && y > 0 && x % kGranule == 0 && y % kGranule == 0 && problem.output[2] % kPair == 0 &&
         problem.input[2] % (is_padded(problem) ? kGranule : kPair) == 0 && pad >= 0 && pad < shape.width &&
         problem.batch * problem.output[0] * problem.output[1] < int64_t{1} << 30 &&
         workspace_bytes(problem, config) <= kWorkspaceCap;
}

/// Seen on an H200: nearly the copy bandwidth, or so much for a row of a warp and each of its taps, and for the orders
/// for a row.
double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  const RowsParams p = plan(problem);
  const double rows = static_cast<double>(problem.out_channels) * p.column_tiles.divisor * p.rows;
  const double taps = static_cast<double>(problem.taps());
  const double row = 60e-9 / users(p) + users(p) * (40e-9 + 4e-9 * taps);
  return 9e-3 + std::max(problem.bytes(size_of(config.dtype)) / 4.05e9, rows * row);
}

void run(const ConvProblem& problem, const ConvConfig&, const Operands& operands, cudaStream_t stream) {
  RowsParams p = plan(problem);
  p.x.data = static_cast<const float*>(operands.x);
  p.y.data = static_cast<const float*>(operands.y);
  p.partials = static_cast<double*>(operands.workspace);
  const dim3 blocks(static_cast<unsigned>(problem.out_channels * splits(p)));
  const dim3 threads(static_cast<unsigned>(users(p) + 1) * 32);
  const auto bytes = static_cast<std::size_t>(kZeroBytes + p.stages * (p.x.bytes + p.y.bytes));
  with_rows_of_taps(march_shape(problem), [&]<int March, int Width>(RowTaps<March, Width>) {
    launch("conv depthwise rows", depthwise_rows<March, Width>, blocks, threads, bytes, stream, p);
  });
  ordered_sum<float>(problem, operands, splits(p), stream);
}

}  // namespace
}  // namespace depthwise

const Algorithm kDepthwiseRows{"depthwise rows", depthwise::supports, depthwise::workspace_bytes, depthwise::predict_ms,
                               depthwise::run};

}  // namespace halo::cuda::conv
