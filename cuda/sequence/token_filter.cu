// A short causal filter from tokens [B, L, C] to sequences [B, C, L]: tiles of 32 channels by 128 positions. Reading
// tokens a lane is a channel, writing sequences a lane is a position; a tile in shared memory stands between.
#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/token_filter_backend.h>

#include <algorithm>

#include "../device/async_copy.cuh"
#include "../device/map.cuh"
#include "../reduce/partials.h"
#include "../runtime/data.h"

namespace halo::cuda {
namespace {

constexpr int kLanes = 32, kWarps = 8, kThreads = kLanes * kWarps;
constexpr int kPositions = 128, kRun = kPositions / kWarps;  ///< of a tile, and of one warp

template <class T>
struct Args {
  int64_t batch, length, channels, width;
  int64_t position_tiles;
  T* parts[TokenFilterProblem::kMaxParts];  ///< sequences: the result, or its gradient
  const T *x, *x_bias, *weight, *bias;

  Args(const TokenFilterProblem& p, const TokenFilterTensors& t, const std::vector<Tensor>& sequences)
      : batch(p.batch),
        length(p.length),
        channels(p.channels),
        width(p.width()),
        position_tiles((p.length + kPositions - 1) / kPositions),
        parts{},
        x(t.x.data<T>()),
        x_bias(data_or_null<T>(t.x_bias)),
        weight(t.weight.data<T>()),
        bias(data_or_null<T>(t.bias)) {
    for (std::size_t i = 0; i < sequences.size(); ++i) parts[i] = sequences[i].template data<T>();
  }
  int64_t channel_tiles() const { return (width + kLanes - 1) / kLanes; }
  /// Position 0 of channel d of sequence b.
  __device__ T* sequence(int64_t b, int64_t d) const {
    const int part = static_cast<int>(d) / static_cast<int>(channels);
    return parts[part] + (b * channels + d - part * channels) * length;
  }
};

/// What a thread needs of its channel. Channels beyond the last are those of the last and write nothing.
template <class T, int K>
struct Channel {
  int64_t d;
  bool live;
  T weight[K], x_bias, bias;
  __device__ Channel(const Args<T>& args, int64_t channel)
      : d(channel < args.width ? channel : args.width - 1), live(channel < args.width) {
#pragma unroll
    for (int k = 0; k < K; ++k) weight[k] = args.weight[d * K + k];
    x_bias = args.x_bias == nullptr ? T(0) : args.x_bias[d];
    bias = args.bias == nullptr ? T(0) : args.bias[d];
  }
  /// The channel's inputs from position `first` - (K - 1) on, as many as a warp's run needs.
  __device__ void load(const Args<T>& args, int64_t b, int64_t first, T (&v)[kRun + K - 1]) const {
    const T* row = args.x + (b * args.length + first - (K - 1)) * args.width + d;
#pragma unroll
    for (int i = 0; i < kRun + K - 1; ++i) {
      const int64_t t = first - (K - 1) + i;
      v[i] = t >= 0 && t < args.length ? row[i * args.width] + x_bias : T(0);
    }
  }
};

template <class T, int K>
__global__ void __launch_bounds__(kThreads) forward_kernel(const __grid_constant__ Args<T> args) {
  __shared__ T tile[kLanes][kPositions + 1];
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const int64_t first_channel = int64_t{blockIdx.y} * kLanes, b = blockIdx.x / args.position_tiles;
  const int64_t start = blockIdx.x % args.position_tiles * kPositions;
  const Channel<T, K> channel(args, first_channel + lane);
  T v[kRun + K - 1];
  channel.load(args, b, start + warp * kRun, v);
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    T sum = channel.bias;
#pragma unroll
    for (int k = 0; k < K; ++k) sum += channel.weight[k] * v[i + k];
    tile[lane][warp * kRun + i] = sum;
  }
  __syncthreads();
  for (int c = warp; c < kLanes && first_channel + c < args.width; c += kWarps) {
    T* out = args.sequence(b, first_channel + c) + start;
#pragma unroll
    for (int t = lane; t < kPositions; t += kLanes) {
      if (start + t < args.length) out[t] = tile[c][t];
    }
  }
}

/// What backward keeps of a tile in shared memory: tokens from K - 1 before it on, [position][channel], and gradients
/// up to K - 1 behind it, [channel][position]. Two of them: one is filled while the other is used.
template <class T, int K>
struct BackwardTile {
  static constexpr int kChunk = 16 / static_cast<int>(sizeof(T));  // elements of one copy
  static constexpr int kRows = kPositions + K - 1;
  static constexpr int kPitch = kPositions + 4;  // 16-byte reads of a quarter warp meet all banks
  static_assert(kRows <= kPitch && kPitch % kChunk == 0);
  static constexpr int kElements = kRows * kLanes + kLanes * kPitch;
  static constexpr std::size_t kBytes = 2 * sizeof(T) * kElements;

  T* tokens;
  T* grads;
  __device__ BackwardTile(T* shared, int stage)
      : tokens(shared + stage * kElements), grads(shared + stage * kElements + kRows * kLanes) {}

  /// Starts the copies of tile `start` of sequence b: `kWidth` elements each; zeros where there is nothing.
  template <int kWidth>
  __device__ void fetch(const Args<T>& args, int64_t b, int64_t start, int64_t first_channel) const {
    constexpr int kSize = static_cast<int>(sizeof(T));
    const int thread = static_cast<int>(threadIdx.y) * kLanes + static_cast<int>(threadIdx.x);
    const auto copy = [](T* to, const T* from, int64_t elements) {
      const int bytes = static_cast<int>(elements < kWidth ? elements : kWidth) * kSize;
      device::copy_async<kWidth * kSize>(static_cast<uint32_t>(__cvta_generic_to_shared(to)), from,
                                         bytes < 0 ? 0 : bytes);
    };
    const T* x = args.x + (b * args.length + start - (K - 1)) * args.width + first_channel;
    for (int i = thread; i < kRows * kLanes / kWidth; i += kThreads) {
      const int row = i / (kLanes / kWidth), c = i % (kLanes / kWidth) * kWidth;
      const int64_t t = start - (K - 1) + row;
      const bool there = t >= 0 && t < args.length;
      copy(tokens + row * kLanes + c, there ? x + row * args.width + c : args.x,
           there ? args.width - first_channel - c : 0);
    }
    for (int i = thread; i < kLanes * kPitch / kWidth; i += kThreads) {
      const int c = i / (kPitch / kWidth), t = i % (kPitch / kWidth) * kWidth;
      const bool there = first_channel + c < args.width && start + t < args.length;
      copy(grads + c * kPitch + t, there ? args.sequence(b, first_channel + c) + start + t : args.x,
           there ? args.length - start - t : 0);
    }
  }
};

/// grid.y blocks share a tile of channels, each taking every grid.y-th tile of positions. partials: [grid.y][K + 2]
/// [width]: the gradients of weight, bias and x_bias. `wide`: rows begin on 16 bytes.
template <class T, int K>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const __grid_constant__ Args<T> args, bool wide, T* x_grad, T* partials) {
  using Tile = BackwardTile<T, K>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  __shared__ T sums[kWarps][K + 2][kLanes];
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const int64_t first_channel = int64_t{blockIdx.x} * kLanes, tiles = args.batch * args.position_tiles;
  const Channel<T, K> channel(args, first_channel + lane);
  const auto fetch = [&](int stage, int64_t item) {
    if (item < tiles) {
      const Tile tile(reinterpret_cast<T*>(shared_bytes), stage);
      const int64_t b = item / args.position_tiles, start = (item - b * args.position_tiles) * kPositions;
      if (wide) {
        tile.template fetch<Tile::kChunk>(args, b, start, first_channel);
      } else {
        tile.template fetch<1>(args, b, start, first_channel);
      }
    }
    device::copy_async_commit();
  };
  T sum[K + 2] = {};
  int stage = 0;
  fetch(stage, blockIdx.y);
  for (int64_t item = blockIdx.y; item < tiles; item += gridDim.y, stage ^= 1) {
    fetch(stage ^ 1, item + gridDim.y);
    device::copy_async_wait<1>();
    __syncthreads();
    const Tile tile(reinterpret_cast<T*>(shared_bytes), stage);
    const int64_t b = item / args.position_tiles, start = (item - b * args.position_tiles) * kPositions;
    const int first = warp * kRun, left = static_cast<int>(min(args.length - start, int64_t{kPositions})) - first;
    T g[kRun + 4];
#pragma unroll
    for (int i = 0; i < kRun + 4; i += kPackSize) {
      const auto pack = *reinterpret_cast<const Pack<T>*>(tile.grads + lane * Tile::kPitch + first + i);
#pragma unroll
      for (int k = 0; k < kPackSize; ++k) g[i + k] = pack.at[k];
    }
    const T* const x = tile.tokens + first * kLanes + lane;
    T* out = x_grad + (b * args.length + start + first) * args.width + channel.d;
    T v[K];  // the last inputs
#pragma unroll
    for (int k = 0; k < K - 1; ++k) v[k + 1] = start + first + k < K - 1 ? T(0) : x[k * kLanes] + channel.x_bias;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
#pragma unroll
      for (int k = 0; k + 1 < K; ++k) v[k] = v[k + 1];
      v[K - 1] = x[(i + K - 1) * kLanes] + channel.x_bias;
      T dx = 0;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        dx += channel.weight[k] * g[i + K - 1 - k];
        sum[k] += g[i] * v[k];
      }
      sum[K] += g[i];
      if (i < left) {
        sum[K + 1] += dx;
        if (channel.live) out[i * args.width] = dx;
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < K + 2; ++k) sums[warp][k][lane] = sum[k];
  __syncthreads();
  for (int k = warp; k < K + 2; k += kWarps) {
    T total = sums[0][k][lane];
    for (int w = 1; w < kWarps; ++w) total += sums[w][k][lane];
    if (channel.live) partials[(blockIdx.y * (K + 2) + k) * args.width + channel.d] = total;
  }
}

/// f(integral_constant of the kernel's length).
template <class F>
void with_kernel(int64_t kernel, F&& f) {
  switch (kernel) {
    case 1: return f(std::integral_constant<int, 1>{});
    case 2: return f(std::integral_constant<int, 2>{});
    case 3: return f(std::integral_constant<int, 3>{});
    case 4: return f(std::integral_constant<int, 4>{});
    case 5: return f(std::integral_constant<int, 5>{});
  }
  fail<InternalError>("token_filter: no kernel of length ", kernel);
}

}  // namespace

void token_filter_forward(const TokenFilterProblem& p, const TokenFilterTensors& in, const std::vector<Tensor>& y) {
  if (in.x.numel() == 0) return;
  dispatch_float("token_filter", in.x.dtype(), [&]<class T>(std::type_identity<T>) {
    const Args<T> args(p, in, y);
    const dim3 grid(static_cast<unsigned>(p.batch * args.position_tiles), static_cast<unsigned>(args.channel_tiles()));
    const DeviceScope scope(in.x.device());
    with_kernel(p.kernel, [&](auto kernel) {
      launch("token_filter", forward_kernel<T, decltype(kernel)::value>, grid, dim3(kLanes, kWarps), 0, scope.stream(),
             args);
    });
  });
}

void token_filter_backward(const TokenFilterProblem& p, const TokenFilterTensors& in, const std::vector<Tensor>& grads,
                           const TokenFilterTensors& into) {
  constexpr const char* kName = "token_filter_backward";
  if (in.x.numel() == 0) {
    for (const Tensor* t : {&into.x_bias, &into.weight, &into.bias}) halo::fill(*t, 0);
    return;
  }
  dispatch_float(kName, in.x.dtype(), [&]<class T>(std::type_identity<T>) {
    const Args<T> args(p, in, grads);
    constexpr int64_t kBlocks = 1024;  // several a multiprocessor; the bits depend on it
    const int64_t shares = std::clamp<int64_t>(kBlocks / args.channel_tiles(), 1, p.batch * args.position_tiles);
    const int64_t rows = p.kernel + 2, pitch = rows * p.width();
    constexpr int64_t kChunk = 16 / static_cast<int64_t>(sizeof(T));
    bool wide = p.width() % kChunk == 0 && p.length % kChunk == 0 && is_aligned(args.x);
    for (const Tensor& g : grads) wide = wide && is_aligned(g.data<T>());
    const Tensor partials = empty({shares, rows, p.width()}, in.x.options());
    const Tensor sums = empty({rows, p.width()}, in.x.options());
    const dim3 grid(static_cast<unsigned>(args.channel_tiles()), static_cast<unsigned>(shares));
    {
      const DeviceScope scope(in.x.device());
      with_kernel(p.kernel, [&](auto kernel) {
        constexpr int K = decltype(kernel)::value;
        launch(kName, backward_kernel<T, K>, grid, dim3(kLanes, kWarps), BackwardTile<T, K>::kBytes, scope.stream(),
               args, wide, into.x.data<T>(), partials.data<T>());
      });
      sum_partials(kName, partials.data<T>(), shares, pitch, pitch, sums.data<T>(), scope.stream());
    }
    halo::copy(view::transpose(view::slice(sums, 0, 0, p.kernel), 0, 1), into.weight);
    halo::copy(view::select(sums, 0, p.kernel), into.bias);
    halo::copy(view::select(sums, 0, p.kernel + 1), into.x_bias);
  });
}

}  // namespace halo::cuda
