// Depthwise convolution of many taps: a thread slides along the rows of taps with neighbouring results of a row in
// registers.
//
// A block has a tile of results: planes (image and channel), depths, rows and columns. The rows of the source under it
// lie in shared memory in the type that sums have, with zeros where there is padding, each from a 16-byte boundary on.
// For every four taps a thread reads four more elements of the row and four weights, 16 bytes at once, and makes
// 4 * kWindow products. Neighbouring threads have neighbouring lines: pitches are odd counts of 16 bytes, so that
// eight lines are in different banks.
#pragma once

#include "../../device/activation.cuh"
#include "../../device/fast_divide.h"
#include "../plain_sum.cuh"

namespace halo::cuda::conv::depthwise {

inline constexpr int kWindow = 8;  ///< results of a thread: neighbours in a row
inline constexpr int kWindowThreads = 256;

/// Of the form: backward_input is forward from y to x with the taps in reverse order.
struct WindowAxis {
  int source, result, kernel, dilation, padding;
  int tile;    ///< results of a block; of the width: columns, a multiple of kWindow
  int extent;  ///< of the box; of the width: of a line, with what the last taps read
  int inside;  ///< positions of the source that a box has, at most
  FastDivide tiles, by_tile, by_inside;
};

struct WindowsGeometry {
  WindowAxis depth, height, width;
  int planes;                          ///< of a block
  int pitch, weight_row, weight_pitch; /// elements: of lines, of the weights' rows and planes
  FastDivide by_lines;                 ///< lines of results of a block
  FastDivide channels, multiplier;     ///< of the result; results of a source channel
  int64_t plane_count;                 ///< of the result

  __host__ __device__ int lines() const { return planes * depth.tile * height.tile; }
};

template <class T>
struct WindowsParams {
  WindowsGeometry geometry;
  PlainSumOf<T> plain;  ///< of the same
  bool flip = false;
  const T *source = nullptr, *weight = nullptr, *bias = nullptr;
  T* result = nullptr;
  Activation activation;

  WindowsParams(const WindowsGeometry& geometry, const PlainSumOf<T>& plain) : geometry(geometry), plain(plain) {}
};

/// Four neighbours, from a 16-byte boundary on.
template <class E>
struct alignas(16) WindowQuad {
  E at[4];
};

/// Products of one quad of weights. `v` is a ring of the source's elements; the first result's is number `First`.
template <int First, int Taps, class E>
__device__ __forceinline__ void add_quad(const E* source, const E* weights, E (&v)[kWindow + 4], E (&sums)[kWindow]) {
  constexpr int kRing = kWindow + 4;
  const auto next = *reinterpret_cast<const WindowQuad<E>*>(source);
  const auto w = *reinterpret_cast<const WindowQuad<E>*>(weights);
#pragma unroll
  for (int i = 0; i < 4; ++i) v[(First + kWindow + i) % kRing] = next.at[i];
#pragma unroll
  for (int t = 0; t < Taps; ++t) {
#pragma unroll
    for (int r = 0; r < kWindow; ++r) sums[r] = fma(v[(First + r + t) % kRing], w.at[t], sums[r]);
  }
}

/// Adds the products of a row of taps, the last of whose `quads` quads has `LastTaps`.
template <int LastTaps, class E>
__device__ __forceinline__ void add_row(const E* source, const E* weights, int quads, E (&sums)[kWindow]) {
  E v[kWindow + 4];
#pragma unroll
  for (int i = 0; i < kWindow; i += 4) {
    const auto first = *reinterpret_cast<const WindowQuad<E>*>(source + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) v[i + j] = first.at[j];
  }
  source += kWindow;
  for (;;) {
    if (quads == 1) return add_quad<0, LastTaps>(source, weights, v, sums);
    add_quad<0, 4>(source, weights, v, sums);
    if (quads == 2) return add_quad<4, LastTaps>(source + 4, weights + 4, v, sums);
    add_quad<4, 4>(source + 4, weights + 4, v, sums);
    if (quads == 3) return add_quad<8, LastTaps>(source + 8, weights + 8, v, sums);
    add_quad<8, 4>(source + 8, weights + 8, v, sums);
    quads -= 3;
    source += 12;
    weights += 12;
  }
}

/// Where a block's tile is.
struct WindowsTile {
  int64_t plane;
  int depth, row, column;
};

__device__ __forceinline__ WindowsTile windows_tile(const WindowsGeometry& g) {
  uint32_t d, h, w;
  const uint32_t plane = g.depth.tiles.divide(g.height.tiles.divide(g.width.tiles.divide(blockIdx.x, w), h), d);
  return {int64_t{plane} * g.planes, static_cast<int>(d) * g.depth.tile, static_cast<int>(h) * g.height.tile,
          static_cast<int>(w) * g.width.tile};
}

/// The box, zeros and all. Ends before a barrier.
template <class T>
__device__ __forceinline__ void load_windows(const WindowsParams<T>& p, const WindowsTile& tile,
                                             device::Accumulator<T>* box) {
  using E = device::Accumulator<T>;
  constexpr int kBatch = 4;
  const WindowsGeometry& g = p.geometry;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int box_lines = g.planes * g.depth.extent * g.height.extent;
  for (int i = thread; i < box_lines * g.pitch / 4; i += threads) reinterpret_cast<WindowQuad<E>*>(box)[i] = {};
  __syncthreads();
  const int first_d = tile.depth - g.depth.padding, first_h = tile.row - g.height.padding,
            first_w = tile.column - g.width.padding;
  const int from_d = max(first_d, 0), from_h = max(first_h, 0), from_w = max(first_w, 0);
  const int to_d = min(first_d + g.depth.extent, g.depth.source), to_h = min(first_h + g.height.extent, g.height.source),
            to_w = min(first_w + g.width.extent, g.width.source);
  const int planes = static_cast<int>(min(int64_t{g.planes}, g.plane_count - tile.plane));
  const int count = planes * g.depth.inside * g.height.inside * g.width.inside;
  for (int first = thread; first < count; first += kBatch * threads) {
    E values[kBatch];
    int places[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      places[b] = -1;
      const int i = first + b * threads;
      if (i >= count) continue;
      uint32_t d, h, w;
      const uint32_t line = g.width.by_inside.divide(static_cast<uint32_t>(i), w);
      const uint32_t plane = g.depth.by_inside.divide(g.height.by_inside.divide(line, h), d);
      const int at_d = from_d + static_cast<int>(d), at_h = from_h + static_cast<int>(h),
                at_w = from_w + static_cast<int>(w);
      if (at_d >= to_d || at_h >= to_h || at_w >= to_w) continue;
      int64_t slice = tile.plane + plane;
      if (g.multiplier.divisor > 1) slice = g.multiplier.divide(static_cast<uint32_t>(slice));
      const int64_t source_line = (slice * g.depth.source + at_d) * g.height.source + at_h;
      values[b] = device::to_accumulator(p.source[source_line * g.width.source + at_w]);
      places[b] = ((static_cast<int>(plane) * g.depth.extent + at_d - first_d) * g.height.extent + at_h - first_h) *
                      g.pitch + at_w - first_w;
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (places[b] >= 0) box[places[b]] = values[b];
    }
  }
}

/// The weights of the tile's planes, rows padded with zeros.
template <class T>
__device__ __forceinline__ void load_window_weights(const WindowsParams<T>& p, const WindowsTile& tile,
                                                    device::Accumulator<T>* weights) {
  const WindowsGeometry& g = p.geometry;
  const int rows = g.depth.kernel * g.height.kernel, taps = rows * g.width.kernel;
  const int lanes = static_cast<int>(threadIdx.x) % 32, warps = static_cast<int>(blockDim.x) / 32;
  for (int i = static_cast<int>(threadIdx.x) / 32; i < g.planes * rows; i += warps) {
    const int plane = i / rows, row = i % rows;
    uint32_t channel;
    g.channels.divide(static_cast<uint32_t>(min(tile.plane + plane, g.plane_count - 1)), channel);
    const T* const from = p.weight + int64_t{channel} * taps;
    for (int k = lanes; k < g.weight_row; k += 32) {
      const int tap = row * g.width.kernel + k;
      weights[plane * g.weight_pitch + row * g.weight_row + k] =
          k < g.width.kernel ? device::to_accumulator(from[p.flip ? taps - 1 - tap : tap]) : device::Accumulator<T>(0);
    }
  }
}

/// One result as a plain sum: padding, which is multiplied as zeros, makes NaN of infinite weights.
template <class T>
__device__ __noinline__ device::Accumulator<T> plain_window(const WindowsParams<T>& p, int64_t plane, int64_t flat) {
  uint32_t channel;
  const uint32_t image = p.geometry.channels.divide(static_cast<uint32_t>(plane), channel);
  const auto sum = p.plain.at(image, channel, flat);
  return p.bias != nullptr ? sum + device::to_accumulator(p.bias[channel]) : sum;
}

template <class T, int LastTaps>
__global__ void __launch_bounds__(kWindowThreads, 4) depthwise_windows(const __grid_constant__ WindowsParams<T> p) {
  using E = device::Accumulator<T>;
  extern __shared__ double2 shared[];
  const WindowsGeometry& g = p.geometry;
  E* const weights = reinterpret_cast<E*>(shared);
  E* const box = weights + g.planes * g.weight_pitch;
  const WindowsTile tile = windows_tile(g);
  load_windows(p, tile, box);
  load_window_weights(p, tile, weights);
  __syncthreads();
  uint32_t line, row, depth;
  const uint32_t group = g.by_lines.divide(threadIdx.x, line);
  const uint32_t plane = g.depth.by_tile.divide(g.height.by_tile.divide(line, row), depth);
  const int column = static_cast<int>(group) * kWindow;
  const int64_t slice = tile.plane + plane;
  const int d = tile.depth + static_cast<int>(depth), h = tile.row + static_cast<int>(row);
  const bool mine = column < g.width.tile && slice < g.plane_count && d < g.depth.result && h < g.height.result &&
                    tile.column + column < g.width.result;
  E sums[kWindow];
  if (mine) {
    uint32_t channel;
    g.channels.divide(static_cast<uint32_t>(slice), channel);
    const E bias = p.bias != nullptr ? device::to_accumulator(p.bias[channel]) : E(0);
#pragma unroll
    for (int r = 0; r < kWindow; ++r) sums[r] = bias;
    const int first = ((static_cast<int>(plane) * g.depth.extent + static_cast<int>(depth)) * g.height.extent +
                       static_cast<int>(row)) * g.pitch + column;
    const E* of_row = weights + static_cast<int>(plane) * g.weight_pitch;
    for (int kd = 0; kd < g.depth.kernel; ++kd) {
      for (int kh = 0; kh < g.height.kernel; ++kh) {
        const int lines = kd * g.depth.dilation * g.height.extent + kh * g.height.dilation;
        add_row<LastTaps>(box + first + lines * g.pitch, of_row, g.weight_row / 4, sums);
        of_row += g.weight_row;
      }
    }
  }
  // Results leave by way of the box, whole rows at once.
  __syncthreads();
  const int pitch = g.width.tile + 4;
  if (mine) {
#pragma unroll
    for (int r = 0; r < kWindow; r += 4) {
      WindowQuad<E> quad;
#pragma unroll
      for (int i = 0; i < 4; ++i) quad.at[i] = sums[r + i];
      *reinterpret_cast<WindowQuad<E>*>(box + static_cast<int>(line) * pitch + column + r) = quad;
    }
  }
  __syncthreads();
  const int columns = min(g.width.tile, g.width.result);
  const FastDivide& by_columns = g.width.by_tile;
  for (int i = static_cast<int>(threadIdx.x); i < g.lines() * columns; i += static_cast<int>(blockDim.x)) {
    uint32_t w, at_row, at_depth;
    const uint32_t at_line = by_columns.divide(static_cast<uint32_t>(i), w);
    const uint32_t of_plane = g.depth.by_tile.divide(g.height.by_tile.divide(at_line, at_row), at_depth);
    const int64_t to_plane = tile.plane + of_plane;
    const int to_d = tile.depth + static_cast<int>(at_depth), to_h = tile.row + static_cast<int>(at_row),
              to_w = tile.column + static_cast<int>(w);
    if (to_plane >= g.plane_count || to_d >= g.depth.result || to_h >= g.height.result || to_w >= g.width.result)
      continue;
    const int64_t flat = (int64_t{to_d} * g.height.result + to_h) * g.width.result + to_w;
    const int64_t plane_size = int64_t{g.depth.result} * g.height.result * g.width.result;
    E value = box[static_cast<int>(at_line) * pitch + static_cast<int>(w)];
    if (!isfinite(value)) value = plain_window(p, to_plane, flat);
    if (p.activation.kind != ActivationKind::None) value = device::call_activation(p.activation, value);
    p.result[to_plane * plane_size + flat] = device::from_accumulator<T>(value);
  }
}

}  // namespace halo::cuda::conv::depthwise
