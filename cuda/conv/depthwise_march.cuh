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

/// Two results of one row, where they exist. `apart`: elements from one to the other.
template <class T>
__device__ __forceinline__ void store_two(T* to, int apart, const float (&values)[2], bool first, bool second) {
  if constexpr (sizeof(T) == 2) {
    if (first && second && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
      *reinterpret_cast<uint32_t*>(to) = device::pack_word<T>(values);
      return;
    }
  }
  if (first) to[0] = device::from_accumulator<T>(values[0]);
  if (second) to[apart] = device::from_accumulator<T>(values[1]);
}

/// Two columns of results, `apart` elements from each other, from the source rows at `source` on; the first rows[c]
/// results of column c are written.
template <class T, int March, int Inner, int Width>
__device__ __forceinline__ void march_columns(const unsigned char* source, int march_pitch, int inner_pitch, int apart,
                                              const float (&taps)[March * Inner * Width], float bias,
                                              const Activation& activation, T* result, int64_t result_pitch,
                                              const int (&rows)[2]) {
  constexpr int kUnroll = kMarchUnroll<March>;
  float sums[March][2];  // of the result rows in reach, row modulo March
#pragma unroll
  for (int m = 0; m < March; ++m) sums[m][0] = sums[m][1] = bias;
  result -= (March - 1) * result_pitch;
  for (int row0 = 1 - March; row0 < rows[0]; row0 += kUnroll) {  // the results that this round finishes
    float done[kUnroll][2];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int i = 0; i < Inner; ++i) {
        float windows[2][Width];
        load_windows<T>(source + i * inner_pitch, apart * static_cast<int>(sizeof(T)), windows);
#pragma unroll
        for (int m = 0; m < March; ++m) {
#pragma unroll
          for (int k = 0; k < Width; ++k) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              float& sum = sums[(u - m + March) % March][c];
              sum = fmaf(taps[(m * Inner + i) * Width + k], windows[c][k], sum);
            }
          }
        }
      }
      source += march_pitch;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        done[u][c] = sums[(u + 1) % March][c];
        sums[(u + 1) % March][c] = bias;
      }
    }
    if (activation.kind != ActivationKind::None) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        done[u][0] = device::apply_activation(activation, done[u][0]);
        done[u][1] = device::apply_activation(activation, done[u][1]);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int row = row0 + u;
      store_two(result, apart, done[u], static_cast<unsigned>(row) < static_cast<unsigned>(rows[0]),
                static_cast<unsigned>(row) < static_cast<unsigned>(rows[1]));
      result += result_pitch;
    }
  }
}

template <class T, int March, int Inner, int Width>
__global__ void __launch_bounds__(kMarchThreads, March* Inner* Width > 25 ? 2 : 4)
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
  const BoxPlace<T> place = source_place(g, tile, p.source + slice * g.source.slice);
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
  load(min(march_item<T>(g, static_cast<int>(threadIdx.x)).plane, tile.planes - 1));  // while the rows arrive
  box_wait<0>(barrier, 0);
  if (finish_box(shared, box, g.source.rows, place)) __syncthreads();

  const unsigned char* const source = shared + box_shift(place);
  T* const result = p.result + tile.plane * g.result.slice + tile.march * g.result.rows.outer_pitch +
                    tile.inner * g.result.rows.inner_pitch + tile.column;
  const int64_t result_pitch = g.column_step != 0 ? g.column_step : g.result.rows.outer_pitch;
  const int apart = columns_apart<T>(g);
  for (int index = static_cast<int>(threadIdx.x); index < march_items(g, tile); index += static_cast<int>(blockDim.x)) {
    const MarchItem item = march_item<T>(g, index);
    if (!item_exists(g, tile, item)) continue;
    load(item.plane);
    const int column = tile.column + item.column;
    march_columns<T, March, Inner, Width>(
        source + item_offset<T>(box, item), step_pitch<T>(g, box), box.inner_pitch, apart, taps, bias, p.activation,
        result + item.plane * g.result.slice + item.inner * g.result.rows.inner_pitch + item.column, result_pitch,
        {march_rows(g, tile, column), march_rows(g, tile, column + apart)});
  }
}

}  // namespace halo::cuda::conv::depthwise
