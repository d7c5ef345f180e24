// As causal_conv1d_tile.cuh, for any number of taps. A thread computes a run of neighbouring positions (`dilation`
// apart) from a window in registers, so that a value read from shared memory is multiplied by as many taps as the run
// is long. Results are turned in shared memory, so that neighbouring lanes store neighbours.
#pragma once

#include "causal_conv1d_tile.cuh"

namespace halo::cuda::causal {

inline constexpr int kRun = 9;  ///< odd: lanes whose runs lie behind one another read different banks
inline constexpr int kUnitSums = kRun + 1;
/// Blocks of a multiprocessor that the registers must leave room for.
template <class T, int Blocks>
inline constexpr int kWideBlocks = sizeof(T) < sizeof(double) ? Blocks : 4;

/// Runs that cover `positions`, and the first position of one.
template <class T>
__device__ __forceinline__ int run_count(const TileParams<T>& p, int positions) {
  return (positions + kRun * p.dilation - 1) / (kRun * p.dilation) * p.dilation;
}
template <class T>
__device__ __forceinline__ int run_first(const TileParams<T>& p, int run) {
  uint32_t offset;
  const uint32_t behind = p.by_dilation.divide(static_cast<uint32_t>(run), offset);
  return static_cast<int>(behind) * kRun * p.dilation + static_cast<int>(offset);
}

/// sums[j] += the sum over k of taps[k] * from[(j + k) * step], in order.
template <class Acc, class From>
__device__ __forceinline__ void run_sums(Acc (&sums)[kRun], const From* from, int step, const Acc* taps, int number) {
  Acc window[kRun];
#pragma unroll
  for (int m = 0; m < kRun - 1; ++m, from += step) window[m] = to_accumulator(*from);
  const auto add = [&](int u, Acc tap) {
    window[(u + kRun - 1) % kRun] = to_accumulator(*from);
    from += step;
#pragma unroll
    for (int j = 0; j < kRun; ++j) sums[j] += tap * window[(u + j) % kRun];
  };
  int k = 0;
  for (; k + kRun <= number; k += kRun) {
#pragma unroll
    for (int u = 0; u < kRun; ++u) add(u, taps[k + u]);
  }
#pragma unroll
  for (int u = 0; u < kRun - 1; ++u) {
    if (k + u < number) add(u, taps[k + u]);
  }
}

/// The taps of the tile's channel in shared memory; the block synchronises before they are read.
template <class T>
__device__ __forceinline__ void copy_taps(const TileParams<T>& p, const Tile& tile, Accumulator<T>* to) {
  const T* const weight = p.weight + int64_t{tile.channel} * p.kernel;
  for (int k = static_cast<int>(threadIdx.x); k < p.kernel; k += kTileThreads) to[k] = to_accumulator(weight[k]);
}

/// result[i] = staged[i] for the tile's positions.
template <class T>
__device__ __forceinline__ void store_staged(const Tile& tile, const T* staged, T* result) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < tile.columns; i += kTileThreads) result[i] = staged[i];
}

template <class T>
__global__ void __launch_bounds__(kTileThreads, kWideBlocks<T, 6>)
    wide_forward_kernel(const __grid_constant__ TileParams<T> p) {
  using Acc = Accumulator<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint64_t copied;
  const conv::BoxCopy copy(copied);
  const Tile tile(p);
  const int64_t start = tile.row * p.length + tile.first;
  const conv::BoxPlace<T> place{p.x + start - p.reach, p.x + p.rows.elements, 1, 0, 0, tile.first - p.reach};
  copy.start(shared, p.x_box, p.rows, place);
  copy.arrive();
  Acc* const taps = reinterpret_cast<Acc*>(shared + p.x_bytes);
  T* const staged = reinterpret_cast<T*>(taps + p.kernel);
  copy_taps(p, tile, taps);
  const Acc bias = p.bias != nullptr ? to_accumulator(p.bias[tile.channel]) : Acc(0);
  copy.wait();
  T* const v = reinterpret_cast<T*>(shared + conv::box_shift(place));
  put_state(p, tile, v);
  for (int run = static_cast<int>(threadIdx.x); run < run_count(p, tile.columns); run += kTileThreads) {
    const int first = run_first(p, run);
    Acc sums[kRun];
#pragma unroll
    for (int j = 0; j < kRun; ++j) sums[j] = bias;
    run_sums(sums, v + first, p.dilation, taps, p.kernel);
    if (p.silu) apply_silu<T>(sums);
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const int at = first + j * p.dilation;
      if (at < tile.columns) staged[at] = from_accumulator<T>(sums[j]);
    }
  }
  store_staged(tile, staged, p.y + start);
}

/// For each group of kRun taps, what one warp of several adds up.
template <class T>
__device__ __forceinline__ void tap_gradients(const TileParams<T>& p, const Tile& tile, const T* v,
                                              const Accumulator<T>* up, Accumulator<T>* scratch) {
  using Acc = Accumulator<T>;
  const int groups = (p.kernel + kRun - 1) / kRun, parts = max(1, kTileWarps / groups), units = groups * parts;
  const int runs = run_count(p, tile.columns), lane = static_cast<int>(threadIdx.x % 32);
  for (int unit = static_cast<int>(threadIdx.x / 32); unit < units; unit += kTileWarps) {
    const int group = unit % groups, part = unit / groups;
    Acc sums[kUnitSums] = {};
    for (int run = part * 32 + lane; run < runs; run += parts * 32) {
      const int first = run_first(p, run);
      const Acc* g = up + first;
      const T* from = v + first + group * kRun * p.dilation;
      const int left = (tile.columns - first + p.dilation - 1) / p.dilation;  // positions of the run that exist
      // Taps of the group that do not exist read what is there; nobody reads their sums.
      Acc window[kRun];
#pragma unroll
      for (int m = 0; m < kRun - 1; ++m, from += p.dilation) window[m] = to_accumulator(*from);
#pragma unroll
      for (int j = 0; j < kRun; ++j, from += p.dilation, g += p.dilation) {
        window[(j + kRun - 1) % kRun] = to_accumulator(*from);
        if (j >= left) continue;
        const Acc gradient = *g;
#pragma unroll
        for (int u = 0; u < kRun; ++u) sums[u] += gradient * window[(j + u) % kRun];
        sums[kRun] += gradient;
      }
    }
#pragma unroll
    for (int u = 0; u < kUnitSums; ++u) {
      const Acc sum = conv::warp_sum(sums[u]);
      if (lane == 0) scratch[unit * kUnitSums + u] = sum;
    }
  }
  __syncthreads();
  double* const partials = p.partials + int64_t{tile.channel} * (p.kernel + 1) * p.splits + tile.split;
  for (int k = static_cast<int>(threadIdx.x); k <= p.kernel; k += kTileThreads) {
    const int at = k == p.kernel ? kRun : k / kRun * kUnitSums + k % kRun;
    double sum = 0;
    for (int part = 0; part < parts; ++part) sum += static_cast<double>(scratch[part * groups * kUnitSums + at]);
    partials[int64_t{k} * p.splits] = sum;
  }
}

template <class T>
__global__ void __launch_bounds__(kTileThreads, kWideBlocks<T, 5>)
    wide_backward_kernel(const __grid_constant__ TileParams<T> p) {
  using Acc = Accumulator<T>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint64_t copied;
  const conv::BoxCopy copy(copied);
  const Tile tile(p);
  const int64_t start = tile.row * p.length + tile.first;
  const conv::BoxPlace<T> x_place{p.x + start - p.reach, p.x + p.rows.elements, 1, 0, 0, tile.first - p.reach};
  const conv::BoxPlace<T> g_place{p.g + start, p.g + p.rows.elements, 1, 0, 0, tile.first};
  copy.start(shared, p.x_box, p.rows, x_place);
  if (p.g != nullptr) copy.start(shared + p.x_bytes, p.g_box, p.rows, g_place);
  copy.arrive();
  Acc* const taps = reinterpret_cast<Acc*>(shared + p.x_bytes + p.g_bytes + p.up_bytes);
  Acc* const scratch = taps + p.kernel;
  copy_taps(p, tile, taps);
  const Acc bias = p.bias != nullptr ? to_accumulator(p.bias[tile.channel]) : Acc(0);
  copy.wait();
  T* const v = reinterpret_cast<T*>(shared + conv::box_shift(x_place));
  T* const given = reinterpret_cast<T*>(shared + p.x_bytes + conv::box_shift(g_place));
  Acc* up;  // the gradients of the sums: in place, where they are of the same type
  if constexpr (std::is_same_v<T, Acc>) {
    up = given;
  } else {
    up = reinterpret_cast<Acc*>(shared + p.x_bytes + p.g_bytes);
  }
  put_state(p, tile, v);

  // The gradients of the sums, also of those after the tile that its inputs reach.
  const int reached = p.columns + p.reach;
  for (int run = static_cast<int>(threadIdx.x); run < run_count(p, reached); run += kTileThreads) {
    const int first = run_first(p, run);
    Acc sums[kRun];
#pragma unroll
    for (int j = 0; j < kRun; ++j) sums[j] = bias;
    if (p.silu) {
      run_sums(sums, v + first, p.dilation, taps, p.kernel);
      to_slopes<T>(sums);
    }
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const int at = first + j * p.dilation;
      if (at >= reached) continue;
      const bool exists = p.g != nullptr && tile.first + at < p.length;
      const Acc g = exists ? to_accumulator(given[at]) : Acc(0);
      up[at] = p.silu && g != Acc(0) ? g * sums[j] : g;
    }
  }
  __syncthreads();

  if (p.partials != nullptr) tap_gradients(p, tile, v, up, scratch);
  const T* const g_state = p.g_state != nullptr ? p.g_state + tile.row * p.reach : nullptr;
  if (p.dx != nullptr) {
    for (int run = static_cast<int>(threadIdx.x); run < run_count(p, tile.columns); run += kTileThreads) {
      const int first = run_first(p, run), last = first + (kRun - 1) * p.dilation;
      Acc sums[kRun] = {};  // the last position first
#pragma unroll
      for (int j = 0; j < kRun && g_state != nullptr; ++j) {
        const int in_state = tile.first + last - j * p.dilation + p.reach - p.length;  // where the final state has it
        if (in_state >= 0 && in_state < p.reach) sums[j] = to_accumulator(g_state[in_state]);
      }
      run_sums(sums, up + last + p.reach, -p.dilation, taps, p.kernel);
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const int at = last - j * p.dilation;
        if (at < tile.columns) v[at] = from_accumulator<T>(sums[j]);  // nobody reads the inputs any more
      }
    }
    store_staged(tile, v, p.dx + start);
  }
  if (p.dstate != nullptr && tile.first == 0) store_state_gradient(p, tile, g_state, taps, up);
}

}  // namespace halo::cuda::causal
