// backward_weight of depthwise convolutions with several rows of taps at memory speed, from the ring of
// rows_ring.cuh.
//
// Limits: compute capability 9.0; groups = in_channels, any channel multiplier; stride and dilation 1 on every axis
// with more than one tap; one tap along the depth. Half types: 3, 5 or 7 rows of up to 9 taps, any width and alignment.
// Float32: kernels of 3 rows and 3, 5 or 7 columns, 5 x 5 and 7 x 7; rows of an even number of elements, of whole
// granules where columns are padded; tensors of whole granules.
#include <algorithm>

#include "../../launch.h"
#include "../../runtime/traits.h"
#include "../algorithms.h"
#include "../counts.h"
#include "../plan_key.h"
#include "../storage.h"
#include "diagonals.cuh"
#include "geometry.h"
#include "rows.cuh"
#include "rows_half.cuh"

namespace halo::cuda::conv {
namespace depthwise {
namespace {

constexpr int64_t kMostColumns = kPair * 32 * kRowsUsers;        ///< of a block, float32
constexpr int64_t kLeastShare = 16;                              ///< rows of a block
constexpr int64_t kMostShare = 2048, kMostHalfShare = 16384;     ///< more would add too many terms in float32
constexpr int kSharedBytes = 227 << 10, kStaticBytes = 3 << 10;  ///< of a multiprocessor; of a block beside the ring
constexpr int kStagesWanted = 4;

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

int64_t up(int64_t value, int64_t of) { return divide_up(value, of) * of; }

/// What both types share; `most_columns`: of a block.
RowsParams begin_plan(const ConvProblem& problem, int64_t granule, int64_t most_columns) {
  const auto divider = [](int64_t by) { return FastDivide(static_cast<uint32_t>(by)); };
  const MarchShape shape = march_shape(problem);
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
  p.march = shape.march;
  p.width = shape.width;
  const int64_t tiles = divide_up(p.y.width, most_columns);
  p.tile = to_int(up(divide_up(p.y.width, tiles), granule));
  p.column_tiles = divider(tiles);
  p.pad_rows = to_int(problem.padding_before[1]);
  p.pad_columns = to_int(problem.padding_before[2]);
  p.margin = to_int(up(p.pad_columns, granule));
  p.rows = to_int(problem.batch * problem.output[0] * problem.output[1]);
  return p;
}

/// Whether a tile has all columns of its rows, so that these follow one another in memory without gaps. Where y has one
/// column, x may have more than that reads.
bool has_whole_rows(const RowsParams& p) { return p.column_tiles.divisor == 1 && p.x.width <= p.tile + p.width - 1; }

/// Bytes from row to row in the ring where each is copied by an order of its own: as in row_box.h, rows of any
/// alignment arrive by whole granules.
int row_pitch(const RowsSide& side, int64_t columns, int64_t size) {
  const int64_t row = columns * size + 2 * (device::kGranule - 1);
  return to_int(row + ((side.width * size - row) % side.line + side.line) % side.line);
}

/// Divides the rows among as many blocks as run at once.
void share_rows(RowsParams& p, const ConvProblem& problem, int blocks, int64_t most_share) {
  const int64_t places = int64_t{device_traits().multiprocessors} * blocks;
  const int64_t splits = std::clamp<int64_t>(places / (problem.out_channels * p.column_tiles.divisor),
                                             divide_up(p.rows, most_share), divide_up(p.rows, kLeastShare));
  p.share = to_int(divide_up(p.rows, splits));
  p.splits = FastDivide(static_cast<uint32_t>(divide_up(p.rows, p.share)));
}

RowsParams plan_float(const ConvProblem& problem) {
  constexpr int64_t kSize = sizeof(float), kFloats = device::kGranule / kSize;
  RowsParams p = begin_plan(problem, kFloats, kMostColumns);
  p.users = to_int(divide_up(p.tile, 32 * kPair));
  p.stage_rows = p.march;
  if (is_padded(problem)) p.x.line = p.x.width * kSize % kBoxLine == 0 ? kBoxLine : device::kGranule;
  const bool whole = has_whole_rows(p) && !is_padded(problem);
  const auto fill = [&](RowsSide& side, int64_t columns) {
    side.pitch = whole ? to_int(side.width * kSize) : row_pitch(side, columns, kSize);
    side.bytes = to_int(up(p.stage_rows * side.pitch + side.line + (whole ? device::kGranule : 0), kBoxLine));
  };
  p.run = whole ? p.stage_rows : 1;
  fill(p.x, p.margin + p.tile + up(p.width - 1, kFloats));
  fill(p.y, p.tile);
  const int blocks = std::clamp(16 / p.users, 1, 12);  // of a multiprocessor
  p.stages =
      std::clamp((kSharedBytes / blocks - kZeroBytes - kStaticBytes) / (p.x.bytes + p.y.bytes), 2, kMostRowStages);
  p.shared_bytes = kZeroBytes + p.stages * (p.x.bytes + p.y.bytes);
  share_rows(p, problem, blocks, kMostShare);
  return p;
}

RowsParams plan_half(const ConvProblem& problem) {
  constexpr int64_t kSize = 2, kGroup = device::kGranule / kSize;
  RowsParams p = begin_plan(problem, kGroup, kHalfRowsUsers * kHalfRowsColumns);
  p.users = to_int(divide_up(std::min(p.tile, p.y.width), kHalfRowsColumns));
  const bool whole = has_whole_rows(p);
  const auto pitch = [&](const RowsSide& side, int64_t columns) {
    return whole ? to_int(side.width * kSize) : row_pitch(side, columns, kSize);
  };
  p.x.pitch = pitch(p.x, p.margin + p.tile + up(p.width - 1, kGroup));
  p.y.pitch = pitch(p.y, p.tile);
  const int blocks = std::clamp(18 / p.users, 1, 12);  // of a multiprocessor
  const int ring = kSharedBytes / blocks - kStaticBytes;
  const int most_rows = std::min(whole ? 32 : 16, to_int(up(p.y.height + p.march - 1, 2)));
  p.stage_rows = std::clamp(ring / kStagesWanted / (p.x.pitch + p.y.pitch) / 2 * 2, 2, most_rows);
  p.run = whole ? p.stage_rows : 1;
  for (RowsSide* side : {&p.x, &p.y}) {
    side->bytes = to_int(up(p.stage_rows * side->pitch + p.margin * kSize + side->line + device::kGranule, kBoxLine));
  }
  p.stages = std::clamp(ring / (p.x.bytes + p.y.bytes), 2, kMostRowStages);
  const int read = p.stages * (p.x.bytes + p.y.bytes) + kHalfRowsColumns * to_int(kSize);  // up to a warp's last column
  p.shared_bytes = std::max(read, to_int(diagonal_bytes(p.users, p.march)));
  share_rows(p, problem, blocks, kMostHalfShare);
  return p;
}

RowsParams plan(const ConvProblem& problem, const ConvConfig& config) {
  return is_half(config.dtype) ? plan_half(problem) : plan_float(problem);
}

int splits(const RowsParams& p) { return static_cast<int>(p.column_tiles.divisor * p.splits.divisor); }

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  return partial_bytes(problem, splits(plan(problem, config)));
}

bool supports_float(const ConvProblem& problem, const ConvConfig& config) {
  constexpr int64_t kFloats = device::kGranule / sizeof(float);
  if (config.alignment < device::kGranule || !with_rows_of_taps(march_shape(problem), [](auto) {})) return false;
  return problem.x_numel() % kFloats == 0 && problem.y_numel() % kFloats == 0 && problem.output[2] % kPair == 0 &&
         problem.input[2] % (is_padded(problem) ? kFloats : kPair) == 0;
}

bool supports_half(const ConvProblem& problem) {
  const MarchShape shape = march_shape(problem);
  return shape.inner == 1 && problem.kernel[0] == 1 && shape.width <= kMostHalfTaps &&
         with_march(shape.march, [](auto) {});
}

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  const bool half = is_half(config.dtype);
  if (config.pass != ConvPass::BackwardWeight || (!half && config.dtype != DType::Float32)) return false;
  if (!problem.is_depthwise() || !march_fits(problem) || !device_traits().is_hopper()) return false;
  const int64_t pad = problem.padding_before[2];
  return problem.x_numel() > 0 && problem.y_numel() > 0 && pad >= 0 && pad < march_shape(problem).width &&
         (half ? supports_half(problem) : supports_float(problem, config)) &&
         problem.batch * problem.output[0] * problem.output[1] < int64_t{1} << 30 &&
         workspace_bytes(problem, config) <= kWorkspaceCap;
}

/// Seen on an H200: nearly the copy bandwidth, or so much for a row, each of its warps and their taps, and in float32
/// for the orders; half types: for a slice.
double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  const RowsParams p = plan(problem, config);
  const double slices = static_cast<double>(problem.batch * problem.out_channels * problem.output[0]);
  double work = 0;
  if (is_half(config.dtype)) {
    const double rows = static_cast<double>(p.y.height + p.march - 1);
    work = slices * (0.3e-6 + rows * (50e-9 + p.users * (25e-9 + 5e-9 * p.march)));
  } else {
    const double row = 60e-9 / p.users + p.users * (40e-9 + 4e-9 * static_cast<double>(problem.taps()));
    work = slices * p.y.height * row;
  }
  return 9e-3 + std::max(problem.bytes(size_of(config.dtype)) / 4.05e9, work * p.column_tiles.divisor);
}

template <class T>
void run_as(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  RowsParams p = plan(problem, config);
  p.x.data = operands.x;
  p.x.end = static_cast<const T*>(operands.x) + problem.x_numel();
  p.y.data = operands.y;
  p.y.end = static_cast<const T*>(operands.y) + problem.y_numel();
  p.partials = static_cast<double*>(operands.workspace);
  const dim3 blocks(static_cast<unsigned>(problem.out_channels * splits(p)));
  if constexpr (sizeof(T) == 2) {
    with_march(p.march, [&]<int March>(std::integral_constant<int, March>) {
      launch("conv depthwise rows", depthwise_rows_half<T, March>, blocks,
             dim3(static_cast<unsigned>(p.users + 1) * 32), static_cast<std::size_t>(p.shared_bytes), stream, p);
    });
  } else {
    with_rows_of_taps(march_shape(problem), [&]<int March, int Width>(RowTaps<March, Width>) {
      launch("conv depthwise rows", depthwise_rows<March, Width>, blocks, dim3(static_cast<unsigned>(p.users + 1) * 32),
             static_cast<std::size_t>(p.shared_bytes), stream, p);
    });
  }
  ordered_sum<T>(problem, operands, splits(p), stream, {}, true);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  dispatch_storage(config.dtype, [&]<class T>(std::type_identity<T>) { run_as<T>(problem, config, operands, stream); });
}

}  // namespace
}  // namespace depthwise

const Algorithm kDepthwiseRows{"depthwise rows", depthwise::supports, depthwise::workspace_bytes, depthwise::predict_ms,
                               depthwise::run};

}  // namespace halo::cuda::conv
