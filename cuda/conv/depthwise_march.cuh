// Forward and backward_input of depthwise convolutions with unit stride and dilation. depthwise_geometry.h says how
// blocks and threads are laid out; depthwise.cu states the limits.
#pragma once

#include "../device/activation.cuh"
#include "depthwise_tile.cuh"

namespace halo::cuda::conv::depthwise {

template <class T, int Taps>
__device__ __forceinline__ void load_taps(const T* weight, bool flip, float (&taps)[Taps]) {
#pragma unroll
  for (int t = 0; t < Taps; ++t) taps[t] = device::to_accumulator(weight[flip ? Taps - 1 - t : t]);
}

/// Columns of a thread.
template <class T>
inline constexpr int kMarchColumns = sizeof(T) == 4 ? kPair : 2 * kPair;

/// Stores two neighbours, aligned to both.
__device__ __forceinline__ void store_pair(float* to, const float* values) {
  *reinterpret_cast<float2*>(to) = float2{values[0], values[1]};
}
template <class T>
__device__ __forceinline__ void store_pair(T* to, const float* values) {
  *reinterpret_cast<uint32_t*>(to) = device::pack_word<T>(values);
}

/// The results of one row in each column; Checked: where `row` is below rows.at[column]. `apart`: elements to the
/// second pair.
template <bool Checked, class T, int Columns>
__device__ __forceinline__ void store_row(T* to, int apart, const float (&values)[Columns], int row,
                                          const ColumnRows<Columns>& rows) {
#pragma unroll
  for (int pair = 0; pair < Columns / kPair; ++pair) {
    bool exists[kPair];
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      exists[c] = !Checked || static_cast<unsigned>(row) < static_cast<unsigned>(rows.at[pair * kPair + c]);
    }
    T* const at = to + pair * apart;
    if (exists[kPair - 1] && reinterpret_cast<uintptr_t>(at) % (kPair * sizeof(T)) == 0) {
      store_pair(at, values + pair * kPair);
      continue;
    }
#pragma unroll
    for (int c = 0; c < kPair; ++c) {
      if (exists[c]) at[c] = device::from_accumulator<T>(values[pair * kPair + c]);
    }
  }
}

/// The results of one thread, from the source rows at `source` on.
template <class T, int March, int Inner, int Width>
__device__ __forceinline__ void march_columns(const unsigned char* source, int march_pitch, int inner_pitch, int apart,
                                              const float (&taps)[March * Inner * Width], float bias,
                                              const Activation& activation, T* result, int64_t result_pitch,
                                              const ColumnRows<kMarchColumns<T>>& rows) {
  constexpr int kUnroll = kMarchUnroll<March>;
  constexpr int C = kMarchColumns<T>;
  float sums[March][C];  // of the result rows in reach, row modulo March
#pragma unroll
  for (int m = 0; m < March; ++m) {
#pragma unroll
    for (int c = 0; c < C; ++c) sums[m][c] = bias;
  }
  result -= (March - 1) * result_pitch;
  for (int row0 = 1 - March; row0 < rows.at[0]; row0 += kUnroll) {  // the results that this round finishes
    float done[kUnroll][C];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int i = 0; i < Inner; ++i) {
        float windows[C][Width];
        load_windows<T>(source + i * inner_pitch, apart * static_cast<int>(sizeof(T)), windows);
#pragma unroll
        for (int m = 0; m < March; ++m) {
#pragma unroll
          for (int k = 0; k < Width; ++k) {
#pragma unroll
            for (int c = 0; c < C; ++c) {
              float& sum = sums[(u - m + March) % March][c];
              sum = fmaf(taps[(m * Inner + i) * Width + k], windows[c][k], sum);
            }
          }
        }
      }
      source += march_pitch;
#pragma unroll
      for (int c = 0; c < C; ++c) {
        done[u][c] = sums[(u + 1) % March][c];
        sums[(u + 1) % March][c] = bias;
      }
    }
    if (activation.kind != ActivationKind::None) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int c = 0; c < C; ++c) done[u][c] = device::call_activation(activation, done[u][c]);
      }
    }
    if (row0 >= 0 && row0 + kUnroll <= rows.at[C - 1]) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) store_row<false>(result + u * result_pitch, apart, done[u], row0 + u, rows);
    } else {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) store_row<true>(result + u * result_pitch, apart, done[u], row0 + u, rows);
    }
    result += kUnroll * result_pitch;
  }
}

template <class T, int March, int Inner, int Width>
__global__ void __launch_bounds__(kMarchThreads, kMarchBlocks<T, March * Inner * Width>)
    depthwise_march(const __grid_constant__ MarchParams<T> p) {
  constexpr int kTaps = March * Inner * Width;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint64_t copied;
  const auto barrier = static_cast<uint32_t>(__cvta_generic_to_shared(&copied));
  box_barrier_init(barrier);
  __syncthreads();

  const MarchGeometry& g = p.geometry;
  const RowBox& box = g.source_box;
  const MarchTile tile = march_tile(g, blockIdx.x);
  uint32_t fold;
  const uint32_t plane = g.fold.divide(static_cast<uint32_t>(tile.plane), fold);  // image and channel
  const int64_t slice = int64_t{p.multiplier.divide(plane)} * g.fold.divisor + fold;
  const BoxPlace<T> place = source_place(g, tile, p.source, slice * g.source.slice);
  start_box(shared, box, g.source.rows, place, barrier);
  box_arrive(barrier);

  float taps[kTaps];
  float bias = 0;
  int taps_plane = -1;
  const auto load = [&](int at) {
    if (at == taps_plane) return;
    taps_plane = at;
    uint32_t channel;
    p.channels.divide(g.fold.divide(static_cast<uint32_t>(tile.plane + at)), channel);
    load_taps(p.weight + int64_t{channel} * kTaps, p.flip, taps);
    bias = p.bias ? device::to_accumulator(p.bias[channel]) : 0.0f;
  };
  load(min(march_item(g, static_cast<int>(threadIdx.x)).plane, tile.planes - 1));  // while the rows arrive
  box_wait<0>(barrier, 0);
  if (finish_box(shared, box, g.source.rows, place)) __syncthreads();

  const unsigned char* const source = shared + box_shift(place);
  T* const result = p.result + tile.plane * g.result.slice + tile.march * g.result.rows.outer_pitch +
                    tile.inner * g.result.rows.inner_pitch + tile.column;
  const int64_t result_pitch = g.column_step != 0 ? g.column_step : g.result.rows.outer_pitch;
  const int apart = columns_apart(g);
  for (int index = static_cast<int>(threadIdx.x); index < march_items(g, tile); index += static_cast<int>(blockDim.x)) {
    const MarchItem item = march_item(g, index);
    if (!item_exists(g, tile, item)) continue;
    load(item.plane);
    const int column = tile.column + item.column;
    march_columns<T, March, Inner, Width>(
        source + item_offset<T>(box, item), step_pitch<T>(g, box), box.inner_pitch, apart, taps, bias, p.activation,
        result + item.plane * g.result.slice + item.inner * g.result.rows.inner_pitch + item.column, result_pitch,
        ColumnRows<kMarchColumns<T>>(g, tile, column));
  }
}

}  // namespace halo::cuda::conv::depthwise
