// backward_weight of depthwise convolutions with unit stride and dilation.
//
// A block has one box of one channel. A thread marches as in march.cuh, but keeps the last rows of the
// upstream gradient instead of partial results, and every tap's sum in a register. Threads sum few enough terms in
// float32 that the error stays below the bound; the rest of the way is float64 in a fixed order.
#pragma once

#include "../ordered_sum.cuh"
#include "tile.cuh"

namespace halo::cuda::conv::depthwise {

/// Columns of a thread: one pair, since two need too many registers beside the sums of the taps.
inline constexpr int kWeightColumns = kPair;

/// Adds the products of a thread's columns to the sums of all taps. `rows`: the gradients that exist.
template <RowStart Start, class T, int March, int Inner, int Width>
__device__ __forceinline__ void march_weight(const unsigned char* x, int x_pitch, int inner_pitch,
                                             const unsigned char* y, int y_pitch, int apart,
                                             const ColumnRows<kWeightColumns>& rows,
                                             float (&taps)[March * Inner * Width]) {
  constexpr int kUnroll = kMarchUnroll<March>;
  constexpr int C = kWeightColumns;
  const int apart_bytes = apart * static_cast<int>(sizeof(T));
  float gradients[March][C] = {};  // row modulo March
  for (int step0 = 0; step0 < rows.at[0] + March - 1; step0 += kUnroll) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const auto* from = reinterpret_cast<const T*>(y);
      const int row = step0 + u;
      if constexpr (Start != RowStart::Mixed) {
        gradients[u % March][0] = gradients[u % March][1] = 0;
        if (row < rows.at[0]) load_pair(from, gradients[u % March]);
      } else {
#pragma unroll
        for (int c = 0; c < C; ++c) gradients[u % March][c] = row < rows.at[c] ? device::to_accumulator(from[c]) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < Inner; ++i) {
        float windows[C][Width];
        load_windows<T, Start>(x + i * inner_pitch, apart_bytes, windows);
#pragma unroll
        for (int c = 0; c < C; ++c) {
#pragma unroll
          for (int m = 0; m < March; ++m) {
#pragma unroll
            for (int k = 0; k < Width; ++k) {
              float& sum = taps[(m * Inner + i) * Width + k];
              sum = fmaf(gradients[(u - m + March) % March][c], windows[c][k], sum);
            }
          }
        }
      }
      x += x_pitch;
      y += y_pitch;
    }
  }
}

template <class T, int March, int Inner, int Width>
__global__ void __launch_bounds__(kMarchThreads, kMarchBlocks<March * Inner * Width>)
    depthwise_weight(const __grid_constant__ MarchWeightParams<T> p) {
  constexpr int kTaps = March * Inner * Width;
  extern __shared__ __align__(kBoxLine) unsigned char memory[];
  __shared__ float warp_sums[kMarchThreads / 32][kTaps];
  __shared__ uint64_t copied;
  const BoxCopy copy(copied);

  const MarchGeometry& g = p.geometry;
  const int64_t channel = blockIdx.x / static_cast<unsigned>(p.splits);
  const uint32_t split = blockIdx.x % static_cast<unsigned>(p.splits);
  const MarchTile tile = march_tile(g, split);
  const BoxPlace<T> x_place =
      source_place(g, tile, p.x,
                   channel / p.multiplier * g.fold.divisor * g.source.slice + tile.outer * g.source.outer_pitch +
                       tile.plane * g.source.rows.plane_pitch);
  const BoxPlace<T> y_place{p.y + channel * g.fold.divisor * g.result.slice + tile.outer * g.result.outer_pitch +
                                tile.plane * g.result.rows.plane_pitch + tile.march * g.result.rows.outer_pitch +
                                tile.inner * g.result.rows.inner_pitch + tile.column,
                            p.y + g.result.rows.elements,
                            tile.planes,
                            tile.march,
                            tile.inner,
                            tile.column};
  unsigned char* const shared = box_begin(memory, g, x_place);
  unsigned char* const y_shared = box_begin(memory + g.source_box.bytes, g, y_place);
  copy.start(shared, g.source_box, g.source.rows, x_place, true);
  copy.start(y_shared, g.result_box, g.result.rows, y_place, true);
  copy.arrive();
  copy.wait();
  if (finish_box(shared, g.source_box, g.source.rows, x_place)) __syncthreads();

  const RowStart start = row_start(g, box_shift(x_place), p.y);
  const unsigned char* const x = shared + box_shift(x_place);
  const unsigned char* const y = y_shared + box_shift(y_place);
  float taps[kTaps] = {};
  const int apart = columns_apart(g);
  for (int index = static_cast<int>(threadIdx.x); index < march_items(g, tile); index += static_cast<int>(blockDim.x)) {
    const MarchItem item = march_item(g, index);
    if (!item_exists(g, tile, item)) continue;
    const ColumnRows<kWeightColumns> rows(g, tile, tile.column + item.column);
    with_row_start(start, [&]<RowStart Start>(std::integral_constant<RowStart, Start>) {
      march_weight<Start, T, March, Inner, Width>(
          x + item_offset<T>(g.source_box, item), step_pitch<T>(g, g.source_box), g.source_box.inner_pitch,
          y + item_offset<T>(g.result_box, item), step_pitch<T>(g, g.result_box), apart, rows, taps);
    });
  }

#pragma unroll
  for (int t = 0; t < kTaps; ++t) {
    const float sum = warp_sum(taps[t]);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32][t] = sum;
  }
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.x); t < kTaps; t += static_cast<int>(blockDim.x)) {
    double sum = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += warp_sums[warp][t];
    p.partials[(channel * kTaps + t) * p.splits + split] = sum;
  }
}

}  // namespace halo::cuda::conv::depthwise
