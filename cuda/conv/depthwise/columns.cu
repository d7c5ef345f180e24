// Depthwise convolution with stride 2 or dilation, and of small images, near memory speed.
//
// Limits: groups = in_channels, any channel multiplier (backward_input: 1); 3 x 3 or 5 x 5 taps with one stride along
// height and width, or a row of up to 8 taps; strides 1 and 2; any dilation (backward_input with stride 2: 1); depth,
// and height of a row of taps, passed through; float32, bfloat16 and float16; planes below 2^30 positions, fewer than
// 2^31 threads. Any padding, width and alignment. Everything else goes to polyphase.cu.
#include <algorithm>

#include "../algorithms.h"
#include "../counts.h"
#include "../ordered_sum.cuh"
#include "../plan_key.h"
#include "../storage.h"
#include "columns.cuh"

namespace halo::cuda::conv {
namespace depthwise {
namespace {

constexpr int64_t kMost = int64_t{1} << 30;
constexpr int64_t kThreadsWanted = int64_t{132} * 2048;

FastDivide divider(int64_t by) { return FastDivide(static_cast<uint32_t>(std::clamp<int64_t>(by, 1, kMost))); }

bool passes_through(const ConvProblem& p, std::size_t axis) {
  return p.kernel[axis] == 1 && p.stride[axis] == 1 && p.padding_before[axis] == 0 && p.input[axis] == p.output[axis];
}

/// The kernel for the taps of `p`, a column a thread; stride 0 if there is none.
ColumnShape column_shape(const ConvProblem& p) {
  const int64_t height = p.kernel[1], width = p.kernel[2], stride = p.stride[2];
  if (!passes_through(p, 0) || stride > 2) return {};
  if (height == 1) {
    if (!passes_through(p, 1) || width > kMoreTapsAlong) return {};
    return {1, width <= kTapsAlong ? kTapsAlong : kMoreTapsAlong, to_int(stride)};
  }
  if (height != width || (width != 3 && width != 5) || p.stride[1] != stride) return {};
  return {to_int(height), to_int(width), to_int(stride)};
}

/// Whether neighbours can be loaded and stored as words.
bool has_words(const ConvProblem& p, const ConvConfig& config, const ColumnShape& shape) {
  const int64_t parity = shape.width / 2 % 2;  // kTapParity
  return is_half(config.dtype) && config.alignment >= 4 && shape.height > 1 && p.dilation[2] == 1 &&
         p.input[2] % 2 == 0 && p.output[2] % 2 == 0 && (p.padding_before[2] + parity) % 2 == 0;
}

ColumnGeometry column_geometry(const ConvProblem& p, const ConvConfig& config, ColumnShape& shape) {
  const ConvPass pass = config.pass;
  shape = column_shape(p);
  if (has_words(p, config, shape)) shape.columns = 2;
  const bool flipped = pass == ConvPass::BackwardInput, weight = pass == ConvPass::BackwardWeight;
  const bool row = shape.height == 1, pairs = flipped && shape.stride == 2;
  const auto& source = flipped ? p.output : p.input;
  const auto& result = flipped ? p.input : p.output;
  const auto dilation = [&](std::size_t axis) { return p.kernel[axis] == 1 ? 1 : p.dilation[axis]; };
  const auto padding = [&](std::size_t axis) {
    const int64_t before = p.padding_before[axis];
    return to_int(flipped && !pairs ? dilation(axis) * (p.kernel[axis] - 1) - before : before);
  };
  ColumnGeometry g;
  g.source_width = to_int(source[2]);
  g.result_width = to_int(result[2]);
  g.pad_width = padding(2);
  g.dilation_width = to_int(dilation(2));
  g.taps = to_int(p.kernel[2]);
  int64_t lanes = result[2] / shape.columns, round = kColumnPieces, rounds, phases = 1, fold = p.output[0];
  if (row) {
    lanes = std::min<int64_t>(divide_up(divide_up(lanes, round), 2) * 2, kColumnThreads);
    rounds = divide_up(result[2], lanes * round);
    fold *= p.output[1];
  } else {
    g.source_height = to_int(source[1]);
    g.result_height = to_int(result[1]);
    g.pad_height = padding(1);
    g.dilation_height = to_int(dilation(1));
    round = pairs ? kColumnPairs : kColumnRows;
    const int64_t first = g.pad_height >> 1, last = (result[1] - 1 + g.pad_height) >> 1;
    rounds = divide_up(pairs ? last - first + 1 : divide_up(result[1], g.dilation_height), round);
    phases = pairs ? 1 : g.dilation_height;
  }
  const int64_t planes = p.batch * (weight ? 1 : p.out_channels) * fold;
  int64_t steps = 1;  // rounds of a thread, which loads its taps once
  while (!weight && steps < std::min<int64_t>(4, rounds) &&
         planes * lanes * phases * divide_up(rounds, 2 * steps) >= 2 * kThreadsWanted) {
    steps *= 2;
  }
  g.strip = to_int(round * steps);
  g.lanes = divider(lanes);
  g.groups = divider(divide_up(rounds, steps) * phases);
  g.by_dilation = divider(phases);
  g.fold = divider(fold);
  g.items = planes * lanes * divide_up(rounds, steps) * phases;
  return g;
}

/// Threads of a block and blocks of a channel of backward_weight.
struct WeightSplit {
  int threads;
  int64_t splits;
};

WeightSplit weight_split(const ConvProblem& p, const ColumnShape& shape, const ColumnGeometry& g) {
  constexpr int64_t kMostTerms = 256;  // that a thread adds in float32
  const int64_t least = divide_up(g.items * g.strip * shape.columns, kMostTerms), most = divide_up(g.items, 2);
  const int64_t threads = std::clamp(divide_up(kThreadsWanted, p.out_channels), std::min(least, most), most);
  const int block = threads <= 32 ? 32 : threads <= 64 ? 64 : kColumnThreads;
  return {block, divide_up(threads, block)};
}

bool supports(const ConvProblem& p, const ConvConfig& config) {
  const bool storage = config.dtype == DType::Float32 || is_half(config.dtype);
  if (!storage || !p.is_depthwise() || p.x_numel() == 0 || p.y_numel() == 0) return false;
  ColumnShape shape = column_shape(p);
  if (shape.stride == 0) return false;
  const bool unit = std::max(p.dilation[1], p.dilation[2]) == 1;
  if (config.pass == ConvPass::BackwardInput && (p.out_channels != p.in_channels || (shape.stride == 2 && !unit))) {
    return false;
  }
  // Positions that are computed, though not read, stay below 2^31.
  const auto extent = [&](std::size_t axis) {
    return std::max(p.input[axis], p.output[axis] * p.stride[axis]) + 2 * std::abs(p.padding_before[axis]) +
           64 * p.dilation[axis];
  };
  if (extent(1) >= kMost || extent(2) >= kMost || extent(1) * extent(2) >= kMost) return false;
  const ColumnGeometry g = column_geometry(p, config, shape);
  if (p.batch * std::max(p.in_channels, p.out_channels) * p.output[0] * p.output[1] >= kMost || g.items >= kMost) {
    return false;
  }
  if (config.pass != ConvPass::BackwardWeight) return true;
  const int64_t splits = weight_split(p, shape, g).splits;
  return p.out_channels * splits < kMost && partial_bytes(p, splits) <= kWorkspaceCap;
}

std::size_t workspace_bytes(const ConvProblem& p, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight) return 0;
  ColumnShape shape;
  const ColumnGeometry g = column_geometry(p, config, shape);
  return partial_bytes(p, weight_split(p, shape, g).splits);
}

/// Seen on an H200: most of the copy bandwidth, or so much for a position of y and each of its taps, and for a row.
double predict_ms(const ConvProblem& p, const ConvConfig& config) {
  const bool words = has_words(p, config, column_shape(p));
  const double launches = config.pass == ConvPass::BackwardWeight ? 2 : 1;
  const double positions = static_cast<double>(p.y_numel()), rows = positions / static_cast<double>(p.output[2]);
  const double stride = p.stride[2] > 1 ? 1.7 : 1, taps = static_cast<double>(p.taps());
  const double position = words ? 0.9e-9 + 0.04e-9 * taps : 1.2e-9 + 0.125e-9 * taps;
  const double work = positions * position * stride + rows * 7e-9;
  return 2.5e-3 * launches + std::max(p.bytes(size_of(config.dtype)) / 3.3e9, work);
}

template <class T>
void run_as(const ConvProblem& p, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  ColumnShape shape;
  const ColumnGeometry geometry = column_geometry(p, config, shape);
  if (config.pass != ConvPass::BackwardWeight) {
    const ColumnParams<T> params(p, config, operands, geometry);
    const bool pairs = config.pass == ConvPass::BackwardInput && shape.stride == 2;
    return pairs ? launch_columns_input(shape, params, stream) : launch_columns(shape, params, stream);
  }
  ColumnWeightParams<T> params;
  params.geometry = geometry;
  const WeightSplit split = weight_split(p, shape, geometry);
  params.x = static_cast<const T*>(operands.x);
  params.y = static_cast<const T*>(operands.y);
  params.partials = static_cast<double*>(operands.workspace);
  params.x_pitch = p.in_channels * p.input_positions();
  params.y_pitch = p.out_channels * p.output_positions();
  params.multiplier = to_int(p.out_channels_per_group());
  params.threads = split.threads;
  params.splits = divider(split.splits);
  params.blocks = static_cast<unsigned>(p.out_channels * split.splits);
  launch_columns_weight(shape, params, stream);
  ordered_sum<T>(p, operands, to_int(split.splits), stream);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  dispatch_storage(config.dtype, [&]<class T>(std::type_identity<T>) { run_as<T>(problem, config, operands, stream); });
}

}  // namespace
}  // namespace depthwise

const Algorithm kDepthwiseColumns{"depthwise columns", depthwise::supports, depthwise::workspace_bytes,
                                  depthwise::predict_ms, depthwise::run};

}  // namespace halo::cuda::conv
