// Causal depthwise convolution of long rows: a block copies its part of a row and the reach of the taps into shared
// memory, so that every operand is read once and every result written once. The backward pass is one kernel too: it
// computes the sums again where the activation needs them, and leaves a partial sum a block for each parameter.
#pragma once

#include <halo/ops/scalar_math.h>

#include "../conv/ordered_sum.cuh"
#include "../conv/row_box.cuh"
#include "../device/number.cuh"

namespace halo::cuda::causal {

using device::Accumulator;
using device::from_accumulator;
using device::to_accumulator;

inline constexpr int kTileThreads = 256;
inline constexpr int kTileSums = 4;  ///< positions a thread works on at once; columns of a tile are whole rounds
inline constexpr int kTileRound = kTileThreads * kTileSums;

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
  int columns;  ///< of a block, a multiple of kTileRound
  FastDivide tiles, by_channel;
  int splits;  ///< blocks a channel
  conv::RowSource rows;
  conv::RowBox x_box, g_box;
  int up_bytes;  ///< backward of half types: for the gradients of the sums, in float32
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

/// The taps of one channel: in registers where their number K is known, else (K = 0) behind the boxes in shared memory.
template <class T, int K>
struct Taps {
  using Acc = Accumulator<T>;
  const T* memory;
  const Acc* copies = nullptr;
  int number, dilation;
  Acc taps[K == 0 ? 1 : K];

  /// The block synchronises before the first sum.
  __device__ Taps(const TileParams<T>& p, const Tile& tile, unsigned char* shared)
      : memory(p.weight + int64_t{tile.channel} * p.kernel), number(p.kernel), dilation(p.dilation) {
    if constexpr (K == 0) {
      Acc* const to = reinterpret_cast<Acc*>(shared);
      for (int k = static_cast<int>(threadIdx.x); k < number; k += kTileThreads) to[k] = to_accumulator(memory[k]);
      copies = to;
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) taps[k] = to_accumulator(memory[k]);
    }
  }
  /// start + the sum over k of tap k times from[k * dilation * direction], in order, for kTileSums positions
  /// kTileThreads apart.
  template <class From>
  __device__ __forceinline__ void sum(Acc (&sums)[kTileSums], const From* from, int direction) const {
    const int step = dilation * direction;
    const auto add = [&](Acc tap, const From* at) {
#pragma unroll
      for (int j = 0; j < kTileSums; ++j) sums[j] += tap * to_accumulator(at[j * kTileThreads]);
    };
    if constexpr (K == 0) {
      for (int k = 0; k < number; ++k) add(copies[k], from + k * step);
    } else {
#pragma unroll
      for (int k = 0; k < K; ++k) add(taps[k], from + k * step);
    }
  }
};

/// Puts the inputs before the row, the state or zeros, in front of `v`, whose first element has position
/// tile.first - reach.
template <class T>
__device__ __forceinline__ void put_state(const TileParams<T>& p, const Tile& tile, T* v) {
  for (int j = static_cast<int>(threadIdx.x); j < p.reach - tile.first; j += kTileThreads) {
    v[j] = p.state != nullptr ? p.state[tile.row * p.reach + tile.first + j] : T{};
  }
  __syncthreads();
}

template <class T, int K>
__global__ void __launch_bounds__(kTileThreads) forward_kernel(const __grid_constant__ TileParams<T> p) {
  using Acc = Accumulator<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint64_t copied;
  const auto barrier = static_cast<uint32_t>(__cvta_generic_to_shared(&copied));
  conv::box_barrier_init(barrier);
  __syncthreads();
  const Tile tile(p);
  const int64_t start = tile.row * p.length + tile.first;
  const conv::BoxPlace<T> place{p.x + start - p.reach, p.x + p.rows.elements, 1, 0, 0, tile.first - p.reach};
  conv::start_box(shared, p.x_box, p.rows, place, barrier);
  conv::box_arrive(barrier);
  const Taps<T, K> taps(p, tile, shared + p.x_box.bytes);
  const Acc bias = p.bias != nullptr ? to_accumulator(p.bias[tile.channel]) : Acc(0);
  conv::box_wait<0>(barrier, 0);
  T* const v = reinterpret_cast<T*>(shared + conv::box_shift(place));
  put_state(p, tile, v);
  for (int i = static_cast<int>(threadIdx.x); i < tile.columns; i += kTileRound) {
    Acc sums[kTileSums] = {bias, bias, bias, bias};
    taps.sum(sums, v + i, 1);
#pragma unroll
    for (int j = 0; j < kTileSums; ++j) {
      const int at = i + j * kTileThreads;
      if (at < tile.columns) p.y[start + at] = from_accumulator<T>(p.silu ? math::silu(sums[j]) : sums[j]);
    }
  }
}

inline constexpr int kTileWarps = kTileThreads / 32;

/// scratch[k][warp]: the sums over each warp of values[k]. Ends with the block synchronised.
template <class T, int N>
__device__ __forceinline__ void block_sums(const T (&values)[N], T (*scratch)[kTileWarps]) {
  __syncthreads();  // the last sums have been read
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const T sum = conv::warp_sum(values[k]);
    if (threadIdx.x % 32 == 0) scratch[k][threadIdx.x / 32] = sum;
  }
  __syncthreads();
}

template <class T>
__device__ __forceinline__ double scratch_sum(T (*scratch)[kTileWarps], int k) {
  double sum = 0;
  for (int w = 0; w < kTileWarps; ++w) sum += static_cast<double>(scratch[k][w]);
  return sum;
}

template <class T, int K>
__global__ void __launch_bounds__(kTileThreads) backward_kernel(const __grid_constant__ TileParams<T> p) {
  using Acc = Accumulator<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint64_t copied;
  __shared__ Acc scratch[(K == 0 ? 4 : K) + 1][kTileWarps];
  const auto barrier = static_cast<uint32_t>(__cvta_generic_to_shared(&copied));
  conv::box_barrier_init(barrier);
  __syncthreads();
  const Tile tile(p);
  const int64_t start = tile.row * p.length + tile.first;
  const conv::BoxPlace<T> x_place{p.x + start - p.reach, p.x + p.rows.elements, 1, 0, 0, tile.first - p.reach};
  const conv::BoxPlace<T> g_place{p.g + start, p.g + p.rows.elements, 1, 0, 0, tile.first};
  conv::start_box(shared, p.x_box, p.rows, x_place, barrier);
  if (p.g != nullptr) conv::start_box(shared + p.x_box.bytes, p.g_box, p.rows, g_place, barrier);
  conv::box_arrive(barrier);
  const Taps<T, K> taps(p, tile, shared + p.x_box.bytes + p.g_box.bytes + p.up_bytes);
  const Acc bias = p.bias != nullptr ? to_accumulator(p.bias[tile.channel]) : Acc(0);
  conv::box_wait<0>(barrier, 0);
  T* const v = reinterpret_cast<T*>(shared + conv::box_shift(x_place));
  T* const given = reinterpret_cast<T*>(shared + p.x_box.bytes + conv::box_shift(g_place));
  Acc* up;  // the gradients of the sums: in place, where they are of the same type
  if constexpr (std::is_same_v<T, Acc>) {
    up = given;
  } else {
    up = reinterpret_cast<Acc*>(shared + p.x_box.bytes + p.g_box.bytes);
  }
  put_state(p, tile, v);

  // The gradients of the sums, also of those after the tile that its inputs reach.
  for (int i = static_cast<int>(threadIdx.x); i < p.columns + p.reach; i += kTileRound) {
    Acc sums[kTileSums] = {bias, bias, bias, bias};
    if (p.silu) taps.sum(sums, v + i, 1);
#pragma unroll
    for (int j = 0; j < kTileSums; ++j) {
      const int at = i + j * kTileThreads;
      const bool exists = p.g != nullptr && tile.first + at < p.length && at < p.columns + p.reach;
      Acc g = exists ? to_accumulator(given[at]) : Acc(0);
      if (p.silu && g != Acc(0)) {
        const Acc s = math::sigmoid(sums[j]);
        g *= s * (Acc(1) + sums[j] * (Acc(1) - s));
      }
      if (at < p.columns + p.reach) up[at] = g;
    }
  }
  __syncthreads();

  const T* const g_state = p.g_state != nullptr ? p.g_state + tile.row * p.reach : nullptr;
  if (p.dx != nullptr) {
    for (int i = static_cast<int>(threadIdx.x); i < tile.columns; i += kTileRound) {
      Acc sums[kTileSums] = {};
#pragma unroll
      for (int j = 0; j < kTileSums && g_state != nullptr; ++j) {
        const int in_state = tile.first + i + j * kTileThreads + p.reach - p.length;  // where the final state has it
        if (in_state >= 0 && in_state < p.reach) sums[j] = to_accumulator(g_state[in_state]);
      }
      taps.sum(sums, up + i + p.reach, -1);
#pragma unroll
      for (int j = 0; j < kTileSums; ++j) {
        const int at = i + j * kTileThreads;
        if (at < tile.columns) p.dx[start + at] = from_accumulator<T>(sums[j]);
      }
    }
  }
  if (p.dstate != nullptr && tile.first == 0) {
    for (int j = static_cast<int>(threadIdx.x); j < p.reach; j += kTileThreads) {
      Acc sum = g_state != nullptr && j >= p.length ? to_accumulator(g_state[j - p.length]) : Acc(0);
      for (int k = 0; k < p.kernel && k * p.dilation <= j; ++k) {
        sum += to_accumulator(taps.memory[k]) * up[j - k * p.dilation];
      }
      p.dstate[tile.row * p.reach + j] = from_accumulator<T>(sum);
    }
  }
  if (p.partials == nullptr) return;
  const int64_t split = int64_t{tile.batch} * p.tiles.divisor + tile.tile;
  double* const partials = p.partials + int64_t{tile.channel} * (p.kernel + 1) * p.splits + split;
  constexpr int kTogether = K == 0 ? 4 : K;  // taps whose sums a thread keeps
  for (int k0 = 0; k0 < p.kernel; k0 += kTogether) {
    Acc sums[kTogether + 1] = {};
    for (int i = static_cast<int>(threadIdx.x); i < tile.columns; i += kTileThreads) {
      const Acc g = up[i];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        if (K != 0 || k0 + k < p.kernel) sums[k] += g * to_accumulator(v[i + (k0 + k) * p.dilation]);
      }
      sums[kTogether] += g;
    }
    block_sums(sums, scratch);
    const int k = static_cast<int>(threadIdx.x);
    if (k < kTogether && k0 + k < p.kernel) partials[int64_t{k0 + k} * p.splits] = scratch_sum(scratch, k);
    if (k == kTogether && k0 == 0) partials[int64_t{p.kernel} * p.splits] = scratch_sum(scratch, k);
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
  if (k < kernel && dweight != nullptr)
    dweight[channel * kernel + k] = from_accumulator<T>(static_cast<Accumulator<T>>(sum));
  if (k == kernel && dbias != nullptr) dbias[channel] = from_accumulator<T>(static_cast<Accumulator<T>>(sum));
}

}  // namespace halo::cuda::causal
