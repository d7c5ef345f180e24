// Depthwise convolution with any stride, dilation, multiplier and kernel: one pass of plain loops, rows of threads
// along the width, so that neighbours share cache lines.
//
// Limits: groups = in_channels; all four floating types; 64-bit offsets, no limit on extents.
// Forward and backward_input: a thread owns kColumns results of one row. backward_weight: a block owns one channel,
// kTapGroup taps and a share of the rows, and sums in float64.
#include <algorithm>
#include <cmath>

#include "../../device/activation.cuh"
#include "../../device/fast_divide.h"
#include "../algorithms.h"
#include "../counts.h"
#include "../ordered_sum.cuh"
#include "../plan_key.h"

namespace halo::cuda::conv {
namespace depthwise {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = 4;
constexpr int kTapGroup = 9;  // a 3 x 3 kernel
constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;

/// One axis of the form. Index: int32_t where every coordinate fits, else int64_t.
template <class Index>
struct Axis {
  Index input, output, kernel, stride, dilation, padding;
  FastDivide by_stride;

  /// Input position that output `o` reads through tap `k`; may lie outside.
  __device__ Index input_at(Index o, Index k) const { return o * stride + k * dilation - padding; }
  /// Output position whose tap `k` reads input `i`, or -1.
  __device__ Index output_at(Index i, Index k) const {
    const Index scaled = i + padding - k * dilation;
    if (scaled < 0) return -1;
    Index o = scaled;
    if constexpr (sizeof(Index) == 4) {
      o = static_cast<Index>(by_stride.divide(static_cast<uint32_t>(scaled)));
    } else if (stride != 1) {
      o = scaled / stride;
    }
    return o * stride == scaled && o < output ? o : -1;
  }
};

template <class Index>
struct Form {
  Axis<Index> depth, height, width;
  Index batch, channels, multiplier;  ///< channels of x
  Index column_tiles, row_threads;    ///< how a block covers rows: row_threads rows of kThreads / row_threads lanes
  Index splits;                       ///< backward_weight: blocks a channel and tap group
  __device__ Index taps() const { return depth.kernel * height.kernel * width.kernel; }
  __device__ int64_t input_slice() const { return int64_t{depth.input} * height.input * width.input; }
  __device__ int64_t output_slice() const { return int64_t{depth.output} * height.output * width.output; }
};

/// A thread's row of the result and its first column; the others follow `lanes` apart.
template <class Index>
struct RowTask {
  Index plane, depth, height, column, lanes;
};

template <class Index>
__device__ RowTask<Index> row_task(const Form<Index>& f, Index depth, Index height) {
  const Index block = static_cast<Index>(blockIdx.x);
  const Index thread = static_cast<Index>(threadIdx.x);
  const Index lanes = kThreads / f.row_threads;
  const Index row = block / f.column_tiles * f.row_threads + thread / lanes;
  const Index column = block % f.column_tiles * lanes * kColumns + thread % lanes;
  return {row / height / depth, row / height % depth, row % height, column, lanes};
}

template <class T, class Index>
__global__ void __launch_bounds__(kThreads) forward_kernel(const __grid_constant__ Form<Index> f, const T* x,
                                                           const T* w, const T* bias, Activation activation, T* y) {
  using Acc = device::Accumulator<T>;
  const RowTask<Index> t = row_task(f, f.depth.output, f.height.output);
  const Index out_channels = f.channels * f.multiplier;
  if (t.plane >= f.batch * out_channels) return;
  const Index channel = t.plane % out_channels;
  const T* plane = x + t.plane / f.multiplier * f.input_slice();
  const T* taps = w + int64_t{channel} * f.taps();
  Acc sums[kColumns] = {};
  for (Index kd = 0; kd < f.depth.kernel; ++kd) {
    const Index d = f.depth.input_at(t.depth, kd);
    if (d < 0 || d >= f.depth.input) continue;
    for (Index kh = 0; kh < f.height.kernel; ++kh) {
      const Index h = f.height.input_at(t.height, kh);
      if (h < 0 || h >= f.height.input) continue;
      const T* row = plane + (int64_t{d} * f.height.input + h) * f.width.input;
      const T* row_taps = taps + (kd * f.height.kernel + kh) * f.width.kernel;
      for (Index kw = 0; kw < f.width.kernel; ++kw) {
        const Acc tap = device::to_accumulator(row_taps[kw]);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          const Index at = f.width.input_at(t.column + c * t.lanes, kw);
          if (at >= 0 && at < f.width.input) sums[c] = fma(device::to_accumulator(row[at]), tap, sums[c]);
        }
      }
    }
  }
  const Acc shift = bias ? device::to_accumulator(bias[channel]) : Acc(0);
  T* out = y + ((int64_t{t.plane} * f.depth.output + t.depth) * f.height.output + t.height) * f.width.output;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const Index column = t.column + c * t.lanes;
    if (column >= f.width.output) break;
    Acc value = sums[c] + shift;
    if (activation.kind != ActivationKind::None) value = device::call_activation(activation, value);
    out[column] = device::from_accumulator<T>(value);
  }
}

template <class T, class Index>
__global__ void __launch_bounds__(kThreads)
    backward_input_kernel(const __grid_constant__ Form<Index> f, const T* y, const T* w, T* x) {
  using Acc = device::Accumulator<T>;
  const RowTask<Index> t = row_task(f, f.depth.input, f.height.input);
  if (t.plane >= f.batch * f.channels) return;
  Acc sums[kColumns] = {};
  for (Index m = 0; m < f.multiplier; ++m) {
    const T* plane = y + (int64_t{t.plane} * f.multiplier + m) * f.output_slice();
    const T* taps = w + (int64_t{t.plane % f.channels} * f.multiplier + m) * f.taps();
    for (Index kd = 0; kd < f.depth.kernel; ++kd) {
      const Index d = f.depth.output_at(t.depth, kd);
      if (d < 0) continue;
      for (Index kh = 0; kh < f.height.kernel; ++kh) {
        const Index h = f.height.output_at(t.height, kh);
        if (h < 0) continue;
        const T* row = plane + (int64_t{d} * f.height.output + h) * f.width.output;
        const T* row_taps = taps + (kd * f.height.kernel + kh) * f.width.kernel;
        for (Index kw = 0; kw < f.width.kernel; ++kw) {
          const Acc tap = device::to_accumulator(row_taps[kw]);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            const Index at = f.width.output_at(t.column + c * t.lanes, kw);
            if (at >= 0) sums[c] = fma(device::to_accumulator(row[at]), tap, sums[c]);
          }
        }
      }
    }
  }
  T* out = x + ((int64_t{t.plane} * f.depth.input + t.depth) * f.height.input + t.height) * f.width.input;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const Index column = t.column + c * t.lanes;
    if (column < f.width.input) out[column] = device::from_accumulator<T>(sums[c]);
  }
}

/// Block: (channel of y, tap group, split). Threads walk the rows of the output that the split owns.
template <class T, class Index>
__global__ void __launch_bounds__(kThreads)
    backward_weight_kernel(const __grid_constant__ Form<Index> f, const T* x, const T* y, double* partials) {
  __shared__ double warp_sums[kThreads / 32][kTapGroup];
  const Index taps = f.taps();
  const Index groups = (taps + kTapGroup - 1) / kTapGroup;
  const Index block = static_cast<Index>(blockIdx.x);
  const Index thread = static_cast<Index>(threadIdx.x);
  const Index split = block % f.splits;
  const Index first_tap = block / f.splits % groups * kTapGroup;
  const Index channel = block / f.splits / groups;
  const Index out_channels = f.channels * f.multiplier;

  const Index lanes = kThreads / f.row_threads;
  const Index rows = f.batch * f.depth.output * f.height.output;
  Index depth_at[kTapGroup], height_at[kTapGroup], width_at[kTapGroup];  // what output position 0 reads
#pragma unroll
  for (int k = 0; k < kTapGroup; ++k) {
    const Index tap = first_tap + k;
    depth_at[k] = f.depth.input_at(0, tap / (f.width.kernel * f.height.kernel));
    height_at[k] = f.height.input_at(0, tap / f.width.kernel % f.height.kernel);
    width_at[k] = f.width.input_at(0, tap % f.width.kernel);
  }
  double sums[kTapGroup] = {};
  for (Index row = split * f.row_threads + thread / lanes; row < rows; row += f.splits * f.row_threads) {
    const Index h = row % f.height.output;
    const Index d = row / f.height.output % f.depth.output;
    const Index n = row / f.height.output / f.depth.output;
    const T* gradient =
        y + (((int64_t{n} * out_channels + channel) * f.depth.output + d) * f.height.output + h) * f.width.output;
    const T* plane = x + (int64_t{n} * f.channels + channel / f.multiplier) * f.input_slice();
    const T* from[kTapGroup];  // the row each tap reads, null where there is none
#pragma unroll
    for (int k = 0; k < kTapGroup; ++k) {
      const Index from_d = d * f.depth.stride + depth_at[k];
      const Index from_h = h * f.height.stride + height_at[k];
      const bool exists =
          first_tap + k < taps && from_d >= 0 && from_d < f.depth.input && from_h >= 0 && from_h < f.height.input;
      from[k] = exists ? plane + (int64_t{from_d} * f.height.input + from_h) * f.width.input : nullptr;
    }
    for (Index column = thread % lanes; column < f.width.output; column += lanes) {
      const auto g = static_cast<double>(device::to_accumulator(gradient[column]));
#pragma unroll
      for (int k = 0; k < kTapGroup; ++k) {
        const Index at = column * f.width.stride + width_at[k];
        if (from[k] == nullptr || at < 0 || at >= f.width.input) continue;
        sums[k] = fma(g, static_cast<double>(device::to_accumulator(from[k][at])), sums[k]);
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kTapGroup; ++k) {
    const double sum = warp_sum(sums[k]);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32][k] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kTapGroup && first_tap + thread < taps) {
    double sum = 0;
#pragma unroll
    for (int warp = 0; warp < kThreads / 32; ++warp) sum += warp_sums[warp][threadIdx.x];
    partials[(int64_t{channel} * taps + first_tap + thread) * f.splits + split] = sum;
  }
}

template <class Index>
Axis<Index> axis(const ConvProblem& p, std::size_t i) {
  const auto index = [](int64_t value) { return static_cast<Index>(value); };
  return {index(p.input[i]),
          index(p.output[i]),
          index(p.kernel[i]),
          index(p.stride[i]),
          index(p.dilation[i]),
          index(p.padding_before[i]),
          FastDivide(static_cast<uint32_t>(p.stride[i]))};
}

/// How blocks cover rows of `width` columns, `per_thread` of them a thread.
struct Cover {
  int64_t row_threads, column_tiles;
};

Cover cover(int64_t width, int per_thread) {
  int64_t lanes = kThreads;
  while (lanes > 4 && (lanes / 2) * per_thread >= width) lanes /= 2;
  return {kThreads / lanes, divide_up(width, lanes * per_thread)};
}

template <class Index>
Form<Index> form(const ConvProblem& p, const Cover& c, int64_t splits = 1) {
  const auto index = [](int64_t value) { return static_cast<Index>(value); };
  return {axis<Index>(p, 0),     axis<Index>(p, 1),    axis<Index>(p, 2),
          index(p.batch),        index(p.in_channels), index(p.out_channels_per_group()),
          index(c.column_tiles), index(c.row_threads), index(splits)};
}

/// Every coordinate, row number and block number stays below 2^31.
bool fits_int32(const ConvProblem& p) {
  constexpr int64_t kRoom = int64_t{1} << 30;
  int64_t largest = std::max(p.batch * p.in_channels, p.batch * p.out_channels);
  largest *= std::max(p.input[0] * p.input[1], p.output[0] * p.output[1]);
  for (std::size_t i = 0; i < 3; ++i) {
    largest = std::max(
        {largest, p.input[i] + p.output[i] * p.stride[i], p.kernel[i] * p.dilation[i], std::abs(p.padding_before[i])});
  }
  return largest < kRoom;
}

int64_t tap_groups(const ConvProblem& p) { return divide_up(p.taps(), kTapGroup); }

/// Enough blocks for every multiprocessor; more would only add partial sums.
int64_t weight_splits(const ConvProblem& p) {
  constexpr int64_t kBlocksWanted = 132 * 32;
  const int64_t rows = divide_up(p.batch * p.output[0] * p.output[1], cover(p.output[2], 1).row_threads);
  const int64_t most = static_cast<int64_t>(kWorkspaceCap / sizeof(double)) / p.w_numel();
  const int64_t wanted = divide_up(kBlocksWanted, p.out_channels * tap_groups(p));
  return std::max<int64_t>(1, std::min({rows, most, wanted}));
}

int64_t blocks_needed(const ConvProblem& p, ConvPass pass) {
  if (pass == ConvPass::BackwardWeight) return p.out_channels * tap_groups(p) * weight_splits(p);
  const bool forward = pass == ConvPass::Forward;
  const auto& extents = forward ? p.output : p.input;
  const Cover c = cover(extents[2], kColumns);
  const int64_t rows = p.batch * (forward ? p.out_channels : p.in_channels) * extents[0] * extents[1];
  return divide_up(rows, c.row_threads) * c.column_tiles;
}

bool supports(const ConvProblem& p, const ConvConfig& config) {
  if (!is_floating_point(config.dtype) || !p.is_depthwise() || p.x_numel() == 0 || p.y_numel() == 0) return false;
  if (p.w_numel() > static_cast<int64_t>(kWorkspaceCap / sizeof(double))) return false;
  return blocks_needed(p, config.pass) <= kMostBlocks;
}

std::size_t workspace_bytes(const ConvProblem& p, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight) return 0;
  return partial_bytes(p, weight_splits(p));
}

/// Seen on an H200, in both types: instructions a result and a product, rows of taps that miss a stride left out; or of
/// weights, for each group of taps of a position.
double predict_ms(const ConvProblem& p, const ConvConfig& config) {
  const auto x = static_cast<double>(p.x_numel()), y = static_cast<double>(p.y_numel());
  const auto taps = static_cast<double>(p.taps());
  const auto skipped = static_cast<double>(p.stride[0] * p.stride[1]);
  switch (config.pass) {
    case ConvPass::Forward: return 6e-3 + y * (3.6e-9 + taps * 0.8e-9);
    case ConvPass::BackwardInput:
      return 6e-3 + x * (3.6e-9 + taps / skipped * static_cast<double>(p.out_channels_per_group()) * 1.25e-9);
    case ConvPass::BackwardWeight: break;
  }
  const bool strided = p.stride[0] * p.stride[1] * p.stride[2] > 1;
  return 6e-3 + y * std::ceil(taps / kTapGroup) * (strided ? 33e-9 : 21e-9);
}

template <class T, class Index>
void run_as(const ConvProblem& p, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  auto* x = static_cast<T*>(operands.x);
  auto* w = static_cast<T*>(operands.w);
  auto* y = static_cast<T*>(operands.y);
  const dim3 blocks(static_cast<unsigned>(blocks_needed(p, config.pass)));
  switch (config.pass) {
    case ConvPass::Forward:
      return launch("conv depthwise general forward", forward_kernel<T, Index>, blocks, kThreads, 0, stream,
                    form<Index>(p, cover(p.output[2], kColumns)), x, w, static_cast<const T*>(operands.bias),
                    config.activation, y);
    case ConvPass::BackwardInput:
      return launch("conv depthwise general backward_input", backward_input_kernel<T, Index>, blocks, kThreads, 0,
                    stream, form<Index>(p, cover(p.input[2], kColumns)), y, w, x);
    case ConvPass::BackwardWeight: {
      const int64_t splits = weight_splits(p);
      launch("conv depthwise general backward_weight", backward_weight_kernel<T, Index>, blocks, kThreads, 0, stream,
             form<Index>(p, cover(p.output[2], 1), splits), x, y, static_cast<double*>(operands.workspace));
      return ordered_sum<T>(p, operands, static_cast<int>(splits), stream);
    }
  }
  fail<InternalError>("depthwise convolution: unknown pass");
}

void run(const ConvProblem& p, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  dispatch_floating("depthwise convolution", config.dtype, [&]<class T>(std::type_identity<T>) {
    if (fits_int32(p)) return run_as<T, int32_t>(p, config, operands, stream);
    run_as<T, int64_t>(p, config, operands, stream);
  });
}

}  // namespace
}  // namespace depthwise

const Algorithm kDepthwiseGeneral{"depthwise general", depthwise::supports, depthwise::workspace_bytes,
                                  depthwise::predict_ms, depthwise::run};

}  // namespace halo::cuda::conv
