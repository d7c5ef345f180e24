// Causal depthwise convolution of long rows: a block copies its part of a row and the reach of the taps into shared
// memory, so that every operand is read once and every result written once. The backward pass is one kernel too: it
// computes the sums again where the activation needs them, and leaves a partial sum a block for each parameter.
#pragma once

#include <halo/ops/scalar_math.h>

#include "../conv/ordered_sum.cuh"
#include "../conv/row_box.cuh"

namespace halo::cuda::causal {

inline constexpr int kTileThreads = 256;

template <class T>
struct TileParams {
  const T *x, *weight, *bias, *state;  ///< bias and state may be null
  const T *g, *g_state;                ///< backward: upstream gradients, may be null
  T* y;                                ///< forward
  T *dx, *dstate;                      ///< backward, may be null
  double* partials;                    ///< backward: [channels, kernel + 1, splits], the last of a channel its bias
  bool silu;
  int channels, length, kernel, dilation;
  int reach;    ///< (kernel - 1) * dilation
  int columns;  ///< of a block
  FastDivide tiles, by_channel;
  int splits;  ///< blocks a channel
  conv::RowSource rows;
  conv::RowBox x_box, g_box;
};

/// What a block works on.
struct Tile {
  int64_t row;  ///< batch * channels + channel
  uint32_t batch, channel, tile;
  int first;    ///< position
  int columns;  ///< that exist

  template <class T>
  __device__ explicit Tile(const TileParams<T>& p) {
    const uint32_t r = p.tiles.divide(blockIdx.x, tile);
    row = r;
    batch = p.by_channel.divide(r, channel);
    first = static_cast<int>(tile) * p.columns;
    columns = min(p.columns, p.length - first);
  }
};

/// The taps of one channel: in registers where their number K is known, else (K = 0) in memory.
template <class T, int K>
struct Taps {
  const T* memory;
  int number, dilation;
  T taps[K == 0 ? 1 : K];

  __device__ Taps(const TileParams<T>& p, const Tile& tile)
      : memory(p.weight + int64_t{tile.channel} * p.kernel), number(p.kernel), dilation(p.dilation) {
#pragma unroll
    for (int k = 0; k < K; ++k) taps[k] = memory[k];
  }
  /// start + the sum over k of tap k times from[k * dilation * direction], in order.
  __device__ __forceinline__ T sum(T start, const T* from, int direction) const {
    const int step = dilation * direction;
    if constexpr (K == 0) {
#pragma unroll 4
      for (int k = 0; k < number; ++k) start += memory[k] * from[k * step];
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) start += taps[k] * from[k * step];
    }
    return start;
  }
};

/// Puts the inputs before the row, the state or zeros, in front of `v`, whose first element has position
/// tile.first - reach.
template <class T>
__device__ __forceinline__ void put_state(const TileParams<T>& p, const Tile& tile, T* v) {
  if (tile.first >= p.reach) return;
  for (int j = static_cast<int>(threadIdx.x); j < p.reach - tile.first; j += kTileThreads) {
    v[j] = p.state != nullptr ? p.state[tile.row * p.reach + tile.first + j] : T(0);
  }
  __syncthreads();
}

template <class T, int K>
__global__ void __launch_bounds__(kTileThreads) forward_kernel(const __grid_constant__ TileParams<T> p) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint64_t copied;
  const auto barrier = static_cast<uint32_t>(__cvta_generic_to_shared(&copied));
  conv::box_barrier_init(barrier);
  __syncthreads();
  const Tile tile(p);
  const int64_t start = tile.row * p.length + tile.first;
  const conv::BoxPlace<T> place{p.x + start - p.reach, 1, 0, 0, tile.first - p.reach};
  conv::start_box(shared, p.x_box, p.rows, place, barrier);
  conv::box_arrive(barrier);
  const Taps<T, K> taps(p, tile);
  const T bias = p.bias != nullptr ? p.bias[tile.channel] : T(0);
  conv::box_wait<0>(barrier, 0);
  T* const v = reinterpret_cast<T*>(shared + conv::box_shift(place));
  put_state(p, tile, v);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < tile.columns; i += kTileThreads) {
    const T sum = taps.sum(bias, v + i, 1);
    p.y[start + i] = p.silu ? math::silu(sum) : sum;
  }
}

/// The sum over the block of `value`, in a fixed order; in thread 0. `scratch`: one number a warp.
template <class T>
__device__ __forceinline__ double block_sum(T value, T* scratch) {
  const T sum = conv::warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0) {
    for (int w = 0; w < kTileThreads / 32; ++w) total += static_cast<double>(scratch[w]);
  }
  return total;
}

template <class T, int K>
__global__ void __launch_bounds__(kTileThreads) backward_kernel(const __grid_constant__ TileParams<T> p) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint64_t copied;
  __shared__ T scratch[kTileThreads / 32];
  const auto barrier = static_cast<uint32_t>(__cvta_generic_to_shared(&copied));
  conv::box_barrier_init(barrier);
  __syncthreads();
  const Tile tile(p);
  const int64_t start = tile.row * p.length + tile.first;
  const conv::BoxPlace<T> x_place{p.x + start - p.reach, 1, 0, 0, tile.first - p.reach};
  const conv::BoxPlace<T> g_place{p.g + start, 1, 0, 0, tile.first};
  conv::start_box(shared, p.x_box, p.rows, x_place, barrier);
  if (p.g != nullptr) conv::start_box(shared + p.x_box.bytes, p.g_box, p.rows, g_place, barrier);
  conv::box_arrive(barrier);
  const Taps<T, K> taps(p, tile);
  const T bias = p.bias != nullptr ? p.bias[tile.channel] : T(0);
  conv::box_wait<0>(barrier, 0);
  T* const v = reinterpret_cast<T*>(shared + conv::box_shift(x_place));
  T* const up = reinterpret_cast<T*>(shared + p.x_box.bytes + conv::box_shift(g_place));
  put_state(p, tile, v);

  // The gradients of the sums, also of those after the tile that its inputs reach.
  for (int j = static_cast<int>(threadIdx.x); j < p.columns + p.reach; j += kTileThreads) {
    T g = p.g != nullptr && tile.first + j < p.length ? up[j] : T(0);
    if (p.silu && g != T(0)) {
      const T sum = taps.sum(bias, v + j, 1), s = math::sigmoid(sum);
      g *= s * (T(1) + sum * (T(1) - s));
    }
    up[j] = g;
  }
  __syncthreads();

  const T* const g_state = p.g_state != nullptr ? p.g_state + tile.row * p.reach : nullptr;
  if (p.dx != nullptr) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < tile.columns; i += kTileThreads) {
      const int in_state = tile.first + i + p.reach - p.length;  // where the final state holds this input
      p.dx[start + i] = taps.sum(g_state != nullptr && in_state >= 0 ? g_state[in_state] : T(0), up + i + p.reach, -1);
    }
  }
  if (p.dstate != nullptr && tile.first == 0) {
    for (int j = static_cast<int>(threadIdx.x); j < p.reach; j += kTileThreads) {
      T sum = g_state != nullptr && j >= p.length ? g_state[j - p.length] : T(0);
      for (int k = 0; k < p.kernel && k * p.dilation <= j; ++k) sum += taps.memory[k] * up[j - k * p.dilation];
      p.dstate[tile.row * p.reach + j] = sum;
    }
  }
  if (p.partials == nullptr) return;
  const int64_t split = int64_t{tile.batch} * p.tiles.divisor + tile.tile;
  for (int k = 0; k <= p.kernel; ++k) {
    T sum = 0;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < tile.columns; i += kTileThreads) {
      sum += k < p.kernel ? up[i] * v[i + k * p.dilation] : up[i];
    }
    const double total = block_sum(sum, scratch);
    if (threadIdx.x == 0) p.partials[(int64_t{tile.channel} * (p.kernel + 1) + k) * p.splits + split] = total;
  }
}

/// The parameters' gradients from the partial sums, a warp each.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    parameter_kernel(const double* partials, int64_t sums, int kernel, int splits, T* dweight, T* dbias) {
  const int64_t index = (int64_t{blockIdx.x} * kTileThreads + threadIdx.x) / 32;
  if (index >= sums) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  double sum = 0;
  for (int s = lane; s < splits; s += 32) sum += partials[index * splits + s];
  sum = conv::warp_sum(sum);
  const int64_t channel = index / (kernel + 1), k = index % (kernel + 1);
  if (lane != 0) return;
  if (k < kernel && dweight != nullptr) dweight[channel * kernel + k] = static_cast<T>(sum);
  if (k == kernel && dbias != nullptr) dbias[channel] = static_cast<T>(sum);
}

}  // namespace halo::cuda::causal
