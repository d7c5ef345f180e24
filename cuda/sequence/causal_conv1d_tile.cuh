// Causal depthwise convolution of long rows: a block copies its part of a row and the reach of the taps into shared
// memory, so that every operand is read once and every result written once. The backward pass is one kernel too: it
// computes the sums again where the activation needs them, and leaves a partial sum a block for each parameter.
#pragma once

#include <halo/ops/causal_conv1d_backend.h>
#include <halo/ops/scalar_math.h>

#include "../conv/ordered_sum.cuh"
#include "../conv/row_box.cuh"
#include "../device/number.cuh"
#include "../device/quick.cuh"
#include "../launch.h"
#include "../runtime/data.h"

namespace halo::cuda::causal {

using device::Accumulator;
using device::from_accumulator;
using device::to_accumulator;

/// 1 / (1 + exp(-x)), as exact as results of type T can tell.
template <class T>
__device__ __forceinline__ Accumulator<T> sigmoid(Accumulator<T> x) {
  if constexpr (sizeof(T) < sizeof(float)) return device::quick_sigmoid(x);
  if constexpr (sizeof(T) == sizeof(float)) return __fdividef(1, 1 + expf(-x));
  return math::sigmoid(x);
}
template <class T>
__device__ __forceinline__ Accumulator<T> silu(Accumulator<T> x) {
  if constexpr (sizeof(T) < sizeof(float)) return x * device::quick_sigmoid(x);
  if constexpr (sizeof(T) == sizeof(float)) return __fdividef(x, 1 + expf(-x));
  return math::silu(x);
}

/// Of several sums at once, whose latencies then overlap: silu, and its slope.
template <class T, int N>
__device__ __forceinline__ void apply_silu(Accumulator<T> (&sums)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) sums[j] = silu<T>(sums[j]);
}
template <class T, int N>
__device__ __forceinline__ void to_slopes(Accumulator<T> (&sums)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const Accumulator<T> s = sigmoid<T>(sums[j]);
    sums[j] = fma(sums[j], fma(-s, s, s), s);
  }
}

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
  int batch;
  int turns;   ///< samples of a block, one after the other, so that the next arrives while one is computed
  int splits;  ///< blocks a channel
  conv::RowSource rows;
  conv::RowBox x_box, g_box;
  int x_bytes, g_bytes;  ///< of shared memory
  int up_bytes;          ///< backward of half types: for the gradients of the sums, in float32
  FastDivide by_dilation;
};

/// What a block works on, its first sample.
struct Tile {
  int64_t row;  ///< sample * channels + channel
  uint32_t channel;
  int64_t split;  ///< of the channel's blocks
  int turns;      ///< samples that exist
  int first;      ///< position
  int columns;    ///< that exist

  template <class T>
  __device__ explicit Tile(const TileParams<T>& p) {
    uint32_t tile;
    const uint32_t samples = p.by_channel.divide(p.tiles.divide(blockIdx.x, tile), channel);
    const int sample = static_cast<int>(samples) * p.turns;
    row = int64_t{sample} * p.channels + channel;
    split = int64_t{samples} * p.tiles.divisor + tile;
    turns = min(p.turns, p.batch - sample);
    first = static_cast<int>(tile) * p.columns;
    columns = min(p.columns, p.length - first);
  }
};

/// The boxes of x, and of g where there is one, of one row after the other, in two buffers in turn.
template <class T>
class TileCopies {
 public:
  /// By all threads. `copied`: in shared memory. `bytes`: of a buffer.
  __device__ TileCopies(const TileParams<T>& p, uint64_t (&copied)[2], unsigned char* shared, int bytes, bool gradients)
      : p_(p),
        barrier_(static_cast<uint32_t>(__cvta_generic_to_shared(&copied[0]))),
        shared_(shared),
        bytes_(bytes),
        gradients_(gradients && p.g != nullptr) {
    conv::box_barrier_init(barrier_);
    conv::box_barrier_init(barrier_ + 8);
    __syncthreads();
  }
  __device__ unsigned char* buffer(int turn) const { return shared_ + turn % 2 * bytes_; }
  __device__ conv::BoxPlace<T> x_place(const Tile& tile) const {
    return {
        p_.x + tile.row * p_.length + tile.first - p_.reach, p_.x + p_.rows.elements, 1, 0, 0, tile.first - p_.reach};
  }
  __device__ conv::BoxPlace<T> g_place(const Tile& tile) const {
    return {p_.g + tile.row * p_.length + tile.first, p_.g + p_.rows.elements, 1, 0, 0, tile.first};
  }
  __device__ void start(const Tile& tile, int turn) const {
    const uint32_t barrier = barrier_ + static_cast<uint32_t>(turn % 2) * 8;
    conv::start_box(buffer(turn), p_.x_box, p_.rows, x_place(tile), barrier);
    if (gradients_) {
      conv::start_box(buffer(turn) + p_.x_bytes, p_.g_box, p_.rows, g_place(tile), barrier);
    }
    conv::box_arrive(barrier);
  }
  /// `tile` of turn `turn`: starts the copy of the next and waits for this one.
  __device__ void next(const Tile& tile, int turn) const {
    const uint32_t barrier = barrier_ + static_cast<uint32_t>(turn % 2) * 8;
    if (turn + 1 < tile.turns) {
      Tile behind = tile;
      behind.row += p_.channels;
      start(behind, turn + 1);
      conv::box_wait<1>(barrier, turn / 2);
    } else {
      conv::box_wait<0>(barrier, turn / 2);
    }
  }
  /// All threads have done with the buffer of this turn.
  __device__ void done(Tile& tile) const {
    tile.row += p_.channels;
    conv::box_written();
    __syncthreads();
  }

 private:
  const TileParams<T>& p_;
  uint32_t barrier_;
  unsigned char* shared_;
  int bytes_;
  bool gradients_;
};

/// The taps of one channel, in registers.
template <class T, int K>
struct Taps {
  using Acc = Accumulator<T>;
  const T* memory;
  int dilation;
  Acc taps[K];

  __device__ Taps(const TileParams<T>& p, const Tile& tile)
      : memory(p.weight + int64_t{tile.channel} * p.kernel), dilation(p.dilation) {
#pragma unroll
    for (int k = 0; k < K; ++k) taps[k] = to_accumulator(memory[k]);
  }
  /// start + the sum over k of tap k times from[k * dilation * direction], in order, for kTileSums positions
  /// kTileThreads apart.
  template <class From>
  __device__ __forceinline__ void sum(Acc (&sums)[kTileSums], const From* from, int direction) const {
#pragma unroll
    for (int k = 0; k < K; ++k) {
#pragma unroll
      for (int j = 0; j < kTileSums; ++j) {
        sums[j] += taps[k] * to_accumulator(from[k * dilation * direction + j * kTileThreads]);
      }
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
  __shared__ uint64_t copied[2];
  const TileCopies<T> copies(p, copied, shared, p.x_bytes, false);
  Tile tile(p);
  copies.start(tile, 0);
  const Taps<T, K> taps(p, tile);
  const Acc bias = p.bias != nullptr ? to_accumulator(p.bias[tile.channel]) : Acc(0);
  for (int turn = 0; turn < tile.turns; ++turn, copies.done(tile)) {
    copies.next(tile, turn);
    T* const v = reinterpret_cast<T*>(copies.buffer(turn) + conv::box_shift(copies.x_place(tile)));
    put_state(p, tile, v);
    T* const y = p.y + tile.row * p.length + tile.first;
    for (int i = static_cast<int>(threadIdx.x); i < tile.columns; i += kTileRound) {
      Acc sums[kTileSums] = {bias, bias, bias, bias};
      taps.sum(sums, v + i, 1);
      if (p.silu) apply_silu<T>(sums);
#pragma unroll
      for (int j = 0; j < kTileSums; ++j) {
        const int at = i + j * kTileThreads;
        if (at < tile.columns) y[at] = from_accumulator<T>(sums[j]);
      }
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

/// By the first tile of a row: the gradient of the state, from that of the final state and of the sums.
template <class T, class Tap>
__device__ __forceinline__ void store_state_gradient(const TileParams<T>& p, const Tile& tile, const T* g_state,
                                                     const Tap* taps, const Accumulator<T>* up) {
  using Acc = Accumulator<T>;
  for (int j = static_cast<int>(threadIdx.x); j < p.reach; j += kTileThreads) {
    Acc sum = g_state != nullptr && j >= p.length ? to_accumulator(g_state[j - p.length]) : Acc(0);
    for (int k = 0; k < p.kernel && k * p.dilation <= j; ++k) sum += to_accumulator(taps[k]) * up[j - k * p.dilation];
    p.dstate[tile.row * p.reach + j] = from_accumulator<T>(sum);
  }
}

/// The gradients of a tile's sums, also of those after it that its inputs reach: up, which may be `given`.
template <class T, int K>
__device__ __forceinline__ void sum_gradients(const TileParams<T>& p, const Tile& tile, const Taps<T, K>& taps,
                                              Accumulator<T> bias, const T* v, const T* given, Accumulator<T>* up) {
  using Acc = Accumulator<T>;
  for (int i = static_cast<int>(threadIdx.x); i < p.columns + p.reach; i += kTileRound) {
    Acc sums[kTileSums] = {bias, bias, bias, bias};
    if (p.silu) {
      taps.sum(sums, v + i, 1);
      to_slopes<T>(sums);
    }
#pragma unroll
    for (int j = 0; j < kTileSums; ++j) {
      const int at = i + j * kTileThreads;
      const bool exists = p.g != nullptr && tile.first + at < p.length && at < p.columns + p.reach;
      const Acc g = exists ? to_accumulator(given[at]) : Acc(0);
      if (at < p.columns + p.reach) up[at] = p.silu && g != Acc(0) ? g * sums[j] : g;
    }
  }
}

/// The gradient of a tile's inputs.
template <class T, int K>
__device__ __forceinline__ void input_gradients(const TileParams<T>& p, const Tile& tile, const Taps<T, K>& taps,
                                                const T* g_state, const Accumulator<T>* up) {
  using Acc = Accumulator<T>;
  T* const dx = p.dx + tile.row * p.length + tile.first;
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
      if (at < tile.columns) dx[at] = from_accumulator<T>(sums[j]);
    }
  }
}

template <class T, int K>
__global__ void __launch_bounds__(kTileThreads, sizeof(T) < sizeof(double) ? 8 : 4)
    backward_kernel(const __grid_constant__ TileParams<T> p) {
  using Acc = Accumulator<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint64_t copied[2];
  __shared__ Acc scratch[K + 1][kTileWarps];
  const TileCopies<T> copies(p, copied, shared, p.x_bytes + p.g_bytes + p.up_bytes, true);
  Tile tile(p);
  copies.start(tile, 0);
  const Taps<T, K> taps(p, tile);
  const Acc bias = p.bias != nullptr ? to_accumulator(p.bias[tile.channel]) : Acc(0);
  Acc sums[K + 1] = {};
  for (int turn = 0; turn < tile.turns; ++turn, copies.done(tile)) {
    copies.next(tile, turn);
    unsigned char* const buffer = copies.buffer(turn);
    T* const v = reinterpret_cast<T*>(buffer + conv::box_shift(copies.x_place(tile)));
    T* const given = reinterpret_cast<T*>(buffer + p.x_bytes + conv::box_shift(copies.g_place(tile)));
    Acc* up;  // the gradients of the sums: in place, where they are of the same type
    if constexpr (std::is_same_v<T, Acc>) {
      up = given;
    } else {
      up = reinterpret_cast<Acc*>(buffer + p.x_bytes + p.g_bytes);
    }
    put_state(p, tile, v);
    sum_gradients(p, tile, taps, bias, v, given, up);
    __syncthreads();
    const T* const g_state = p.g_state != nullptr ? p.g_state + tile.row * p.reach : nullptr;
    if (p.dx != nullptr) input_gradients(p, tile, taps, g_state, up);
    if (p.dstate != nullptr && tile.first == 0) store_state_gradient(p, tile, g_state, taps.memory, up);
    if (p.partials == nullptr) continue;
    for (int i = static_cast<int>(threadIdx.x); i < tile.columns; i += kTileThreads) {
      const Acc g = up[i];
#pragma unroll
      for (int k = 0; k < K; ++k) sums[k] += g * to_accumulator(v[i + k * p.dilation]);
      sums[K] += g;
    }
  }
  if (p.partials == nullptr) return;
  double* const partials = p.partials + int64_t{tile.channel} * (p.kernel + 1) * p.splits + tile.split;
  block_sums(sums, scratch);
  const int k = static_cast<int>(threadIdx.x);
  if (k <= K) partials[int64_t{k} * p.splits] = scratch_sum(scratch, k);
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

/// Calls f with the number of taps as a constant: 2, 3, 4.
template <class F>
void with_few_taps(int kernel, F&& f) {
  switch (kernel) {
    case 2: return f(std::integral_constant<int, 2>{});
    case 3: return f(std::integral_constant<int, 3>{});
    default: return f(std::integral_constant<int, 4>{});
  }
}

/// Room for the partial sums of the parameters' gradients, where they are wanted, and their sums.
template <class T>
class ParameterSums {
 public:
  /// `splits`: partial sums of each.
  ParameterSums(const CausalConv1dProblem& p, const CausalConv1dTensors& into, int splits, Device device)
      : kernel_(static_cast<int>(p.kernel)),
        splits_(splits),
        sums_(into.weight.defined() || into.bias.defined() ? p.channels * (p.kernel + 1) : 0),
        dweight_(data_or_null<T>(into.weight)),
        dbias_(data_or_null<T>(into.bias)),
        memory_(static_cast<std::size_t>(sums_ * splits) * sizeof(double), device) {}
  /// Null where nothing is wanted.
  double* partials() const { return sums_ > 0 ? static_cast<double*>(memory_.data()) : nullptr; }
  void add(const char* name, cudaStream_t stream) const {
    if (sums_ == 0) return;
    constexpr int64_t kWarps = kTileThreads / 32;
    launch(name, parameter_kernel<T>, static_cast<unsigned>((sums_ + kWarps - 1) / kWarps), kTileThreads, 0, stream,
           partials(), sums_, kernel_, splits_, dweight_, dbias_);
  }

 private:
  int kernel_, splits_;
  int64_t sums_;
  T *dweight_, *dbias_;
  Storage memory_;
};

}  // namespace halo::cuda::causal
