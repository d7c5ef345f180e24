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
#include "../plain_sum.cuh"
#include "line_box.cuh"

namespace halo::cuda::conv::depthwise {

inline constexpr int kWindow = 8;  ///< results of a thread: neighbours in a row
inline constexpr int kWindowThreads = 256;

/// Of the form: backward_input is forward from y to x with the taps in reverse order.
struct WindowAxis {
  int result, kernel, dilation, padding;
  int tile;  ///< results of a block; of the width: columns, a multiple of kWindow
  FastDivide tiles, by_tile;
};

struct WindowsGeometry {
  WindowAxis depth, height, width;
  LineBox box;
  int planes;                    ///< of a block
  int weight_row, weight_pitch;  ///< elements: of the weights' rows and planes
  int store;                     ///< results that a thread stores at once
  bool staged;  ///< results leave by way of the box, line by line: of long rows, where a thread cannot store 16 bytes
  FastDivide by_lines;  ///< lines of results of a block
  FastDivide by_tap_rows, by_weight_row;
  FastDivide channels, multiplier;  ///< of the result; results of a source channel
  int64_t plane_count;              ///< of the result

  __host__ __device__ int lines() const { return planes * depth.tile * height.tile; }
  __device__ int result_pitch() const { return width.tile + 4; }  ///< in the box; an odd number of quads
  __device__ int64_t result_plane() const { return int64_t{depth.result} * height.result * width.result; }
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

/// The source under a tile. Whole after copy_async_wait_all and a barrier.
template <class T>
__device__ __forceinline__ void load_windows(const WindowsParams<T>& p, const WindowsTile& tile,
                                             device::Accumulator<T>* box) {
  const WindowsGeometry& g = p.geometry;
  const int planes = static_cast<int>(min(int64_t{g.planes}, g.plane_count - tile.plane));
  load_lines(g.box, tile.depth - g.depth.padding, tile.row - g.height.padding, tile.column - g.width.padding, planes,
             p.source, box, [&](int plane) {
               const auto slice = static_cast<uint32_t>(tile.plane + plane);
               return int64_t{g.multiplier.divisor > 1 ? g.multiplier.divide(slice) : slice};
             });
}

/// The weights of the tile's planes, rows padded with zeros.
template <class T>
__device__ __forceinline__ void load_window_weights(const WindowsParams<T>& p, const WindowsTile& tile,
                                                    device::Accumulator<T>* weights) {
  const WindowsGeometry& g = p.geometry;
  const int rows = g.depth.kernel * g.height.kernel, taps = rows * g.width.kernel;
  for (int i = static_cast<int>(threadIdx.x); i < g.planes * rows * g.weight_row; i += static_cast<int>(blockDim.x)) {
    uint32_t k, row, channel;
    const uint32_t plane = g.by_tap_rows.divide(g.by_weight_row.divide(static_cast<uint32_t>(i), k), row);
    const auto column = static_cast<int>(k), tap = static_cast<int>(row) * g.width.kernel + column;
    g.channels.divide(static_cast<uint32_t>(min(tile.plane + plane, g.plane_count - 1)), channel);
    weights[static_cast<int>(plane) * g.weight_pitch + static_cast<int>(row) * g.weight_row + column] =
        column < g.width.kernel
            ? device::to_accumulator(p.weight[int64_t{channel} * taps + (p.flip ? taps - 1 - tap : tap)])
            : device::Accumulator<T>(0);
  }
}

/// Stores those of a thread's results that exist, `N` at once; `exist` is a multiple of N.
template <int N, class T, class E>
__device__ __forceinline__ void store_window(T* to, const E (&sums)[kWindow], int exist) {
  struct alignas(N * sizeof(T)) Piece {
    T at[N];
  };
#pragma unroll
  for (int r = 0; r < kWindow; r += N) {
    if (r >= exist) return;
    Piece piece;
#pragma unroll
    for (int i = 0; i < N; ++i) piece.at[i] = device::from_accumulator<T>(sums[r + i]);
    *reinterpret_cast<Piece*>(to + r) = piece;
  }
}

/// A thread's results as plain sums: padding, which is multiplied as zeros, makes NaN of infinite weights.
template <class T, class To>
__device__ __noinline__ void repair_window(const WindowsParams<T>& p, To* to, int64_t plane, int64_t flat, int exist) {
  uint32_t channel;
  const uint32_t image = p.geometry.channels.divide(static_cast<uint32_t>(plane), channel);
  for (int r = 0; r < exist; ++r) {
    auto sum = p.plain.at(image, channel, flat + r);
    if (p.bias != nullptr) sum += device::to_accumulator(p.bias[channel]);
    to[r] = device::from_accumulator<To>(sum);
  }
}

/// The results that lie in the box, line by line.
template <class T>
__device__ __forceinline__ void store_lines(const WindowsParams<T>& p, const WindowsTile& tile,
                                            const device::Accumulator<T>* box) {
  const WindowsGeometry& g = p.geometry;
  const int thread = static_cast<int>(threadIdx.x), lanes = 1 << g.box.lanes_log;
  const int columns = min(g.width.tile, g.width.result - tile.column);
  for (int line = thread >> g.box.lanes_log; line < g.lines(); line += static_cast<int>(blockDim.x) / lanes) {
    uint32_t row, depth;
    const uint32_t of_tile = g.depth.by_tile.divide(g.height.by_tile.divide(static_cast<uint32_t>(line), row), depth);
    const int64_t plane = tile.plane + of_tile;
    const int d = tile.depth + static_cast<int>(depth), h = tile.row + static_cast<int>(row);
    if (plane >= g.plane_count || d >= g.depth.result || h >= g.height.result) continue;
    T* const to =
        p.result + plane * g.result_plane() + (int64_t{d} * g.height.result + h) * g.width.result + tile.column;
    const auto* const from = box + line * g.result_pitch();
    for (int c = thread & (lanes - 1); c < columns; c += lanes) to[c] = device::from_accumulator<T>(from[c]);
  }
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
  device::copy_async_wait_all();
  __syncthreads();
  uint32_t line, row, depth, channel;
  const uint32_t group = g.by_lines.divide(threadIdx.x, line);
  const uint32_t plane = g.depth.by_tile.divide(g.height.by_tile.divide(line, row), depth);
  const int column = static_cast<int>(group) * kWindow, exist = min(kWindow, g.width.result - tile.column - column);
  const int64_t slice = tile.plane + plane;
  const int d = tile.depth + static_cast<int>(depth), h = tile.row + static_cast<int>(row);
  const bool mine =
      column < g.width.tile && slice < g.plane_count && d < g.depth.result && h < g.height.result && exist > 0;
  E sums[kWindow] = {};
  if (mine) {
    g.channels.divide(static_cast<uint32_t>(slice), channel);
    const E bias = p.bias != nullptr ? device::to_accumulator(p.bias[channel]) : E(0);
#pragma unroll
    for (int r = 0; r < kWindow; ++r) sums[r] = bias;
    const int box_line =
        (static_cast<int>(plane) * g.box.extent[0] + static_cast<int>(depth)) * g.box.extent[1] + static_cast<int>(row);
    const E* of_row = weights + static_cast<int>(plane) * g.weight_pitch;
    for (int kd = 0; kd < g.depth.kernel; ++kd) {
      for (int kh = 0; kh < g.height.kernel; ++kh) {
        const int lines = kd * g.depth.dilation * g.box.extent[1] + kh * g.height.dilation;
        add_row<LastTaps>(box + (box_line + lines) * g.box.pitch + column, of_row, g.weight_row / 4, sums);
        of_row += g.weight_row;
      }
    }
  }
  bool finite = true;
#pragma unroll
  for (int r = 0; r < kWindow; ++r) finite = finite && isfinite(sums[r]);
  const int64_t flat = (int64_t{d} * g.height.result + h) * g.width.result + tile.column + column;
  const bool activate = p.activation.kind != ActivationKind::None, by_shared = g.staged || activate;
  E* const own = box + static_cast<int>(line) * g.result_pitch() + column;
  if (by_shared) {
    __syncthreads();
    if (mine) {
#pragma unroll
      for (int r = 0; r < kWindow; ++r) own[r] = sums[r];
      if (!finite) repair_window(p, own, slice, flat, exist);
#pragma unroll 1
      for (int r = 0; activate && r < kWindow; ++r) own[r] = device::call_activation(p.activation, own[r]);
    }
  }
  if (g.staged) {
    __syncthreads();
    return store_lines(p, tile, box);
  }
  if (!mine) return;
  T* const to = p.result + slice * g.result_plane() + flat;
  if (by_shared) {
#pragma unroll
    for (int r = 0; r < kWindow; ++r) sums[r] = own[r];
  }
  switch (g.store) {
    case 8: store_window<16 / sizeof(T)>(to, sums, exist); break;  // half types alone have so many in 16 bytes
    case 4: store_window<sizeof(T) == 8 ? 2 : 4>(to, sums, exist); break;
    case 2: store_window<2>(to, sums, exist); break;
    default: store_window<1>(to, sums, exist);
  }
  if (!finite && !by_shared) repair_window(p, to, slice, flat, exist);
}

}  // namespace halo::cuda::conv::depthwise
