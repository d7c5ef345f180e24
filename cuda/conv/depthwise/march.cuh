// Forward and backward_input of depthwise convolutions with unit stride and dilation. geometry.h says how
// blocks and threads are laid out; depthwise.cu states the limits.
#pragma once

#include "../../device/activation.cuh"
#include "tile.cuh"

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
template <bool Checked, RowStart Start, class T, int Columns>
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
    if constexpr (Start != RowStart::Mixed) {
      if (exists[0]) store_pair(at, values + pair * kPair);
    } else if (exists[kPair - 1] && reinterpret_cast<uintptr_t>(at) % (kPair * sizeof(T)) == 0) {
      store_pair(at, values + pair * kPair);
    } else {
#pragma unroll
      for (int c = 0; c < kPair; ++c) {
        if (exists[c]) at[c] = device::from_accumulator<T>(values[pair * kPair + c]);
      }
    }
  }
}

/// The results of one thread, from the source rows at `source` on.
template <RowStart Start, class T, int March, int Inner, int Width>
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
  for (int row = 1 - March; row < rows.at[0]; row += kUnroll) {  // the results that this round finishes
    float done[kUnroll][C];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int i = 0; i < Inner; ++i) {
        float windows[C][Width];
        load_windows<T, Start>(source + i * inner_pitch, apart * static_cast<int>(sizeof(T)), windows);
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
    if (row >= 0 && row + kUnroll <= rows.at[C - 1]) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        store_row<false, Start>(result + u * result_pitch, apart, done[u], row + u, rows);
    } else {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        store_row<true, Start>(result + u * result_pitch, apart, done[u], row + u, rows);
    }
    result += kUnroll * result_pitch;
  }
}

template <class T, int March, int Inner, int Width>
__global__ void __launch_bounds__(kMarchThreads, kMarchBlocks<March * Inner * Width>)
    depthwise_march(const __grid_constant__ MarchParams<T> p) {
  constexpr int kTaps = March * Inner * Width;
  extern __shared__ __align__(kBoxLine) unsigned char memory[];
  __shared__ uint64_t copied;
  const BoxCopy copy(copied);

  const MarchGeometry& g = p.geometry;
  const RowBox& box = g.source_box;
  const MarchTile tile = march_tile(g, blockIdx.x);
  const auto place = source_place<T>(p, g, tile);
  unsigned char* const shared = box_begin(memory, g, place);
  copy.start(shared, box, g.source.rows, place, true);
  copy.arrive();

  float taps[kTaps];
  float bias = 0;
  int taps_plane = -1;
  const auto load = [&](int at) {
    if (at == taps_plane) return;
    taps_plane = at;
    const int64_t channel = channel_of(p, g, tile.plane + at);
    load_taps(p.weight + channel * kTaps, p.flip, taps);
    bias = p.bias ? device::to_accumulator(p.bias[channel]) : 0.0f;
  };
  load(min(march_item(g, static_cast<int>(threadIdx.x)).plane, tile.planes - 1));  // while the rows arrive
  copy.wait();
  if (finish_box(shared, box, g.source.rows, place)) __syncthreads();

  const RowStart start = row_start(g, box_shift(place), p.result);
  const unsigned char* const source = shared + box_shift(place);
  T* const result = p.result + tile.plane * g.result.slice + tile.march * g.result.rows.outer_pitch +
                    tile.inner * g.result.rows.inner_pitch + tile.column;
  const int64_t result_pitch = g.column_step != 0 ? g.column_step : g.result.rows.outer_pitch;
  const int apart = columns_apart(g);
  for (int index = static_cast<int>(threadIdx.x); index < march_items(g, tile); index += static_cast<int>(blockDim.x)) {
    const MarchItem item = march_item(g, index);
    if (!item_exists(g, tile, item)) continue;
    load(item.plane);
    const ColumnRows<kMarchColumns<T>> rows(g, tile, tile.column + item.column);
    T* const to = result + item.plane * g.result.slice + item.inner * g.result.rows.inner_pitch + item.column;
    with_row_start(start, [&]<RowStart Start>(std::integral_constant<RowStart, Start>) {
      march_columns<Start, T, March, Inner, Width>(source + item_offset<T>(box, item), step_pitch<T>(g, box),
                                                   box.inner_pitch, apart, taps, bias, p.activation, to, result_pitch,
                                                   rows);
    });
  }
}

}  // namespace halo::cuda::conv::depthwise
