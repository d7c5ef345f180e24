// Which part of a problem a block works on.
#pragma once

#include <cstdint>

#include "../row_box.cuh"
#include "depthwise.h"

namespace halo::cuda::conv::depthwise {

/// A block's first slice and its first result.
struct MarchTile {
  int64_t outer;
  int64_t plane;
  int planes;  ///< slices that exist
  int march, inner, column;
};

__device__ __forceinline__ MarchTile march_tile(const MarchGeometry& g, uint32_t index) {
  uint32_t column, inner, strip, plane;
  index = g.column_tiles.divide(index, column);
  index = g.inner_tiles.divide(index, inner);
  index = g.strips.divide(index, strip);
  index = g.plane_tiles.divide(index, plane);
  MarchTile tile;
  tile.outer = index;
  tile.plane = int64_t{plane} * g.planes;
  tile.planes = static_cast<int>(min(int64_t{g.planes}, g.plane_count - tile.plane));
  tile.march = g.column_step != 0 ? 0 : static_cast<int>(strip) * g.strip;
  tile.inner = static_cast<int>(inner * g.inner.divisor);
  tile.column = static_cast<int>(column) * g.step_columns * (g.column_step != 0 ? g.strip : 1);
  return tile;
}

/// A thread's result columns in a tile: one or two pairs of neighbours, `columns_apart` elements from each other.
inline constexpr int kPair = 2;

__device__ __forceinline__ int columns_apart(const MarchGeometry& g) {
  return static_cast<int>(g.words.divisor) * kPair;
}

/// Offsets of the first of them.
struct MarchItem {
  int plane, inner, column;
};

__device__ __forceinline__ int march_items(const MarchGeometry& g, const MarchTile& tile) {
  return tile.planes * static_cast<int>(g.inner.divisor * g.words.divisor);
}

__device__ __forceinline__ MarchItem march_item(const MarchGeometry& g, int index) {
  uint32_t column, inner;
  const uint32_t plane = g.inner.divide(g.words.divide(static_cast<uint32_t>(index), column), inner);
  return {static_cast<int>(plane), static_cast<int>(inner), static_cast<int>(column) * kPair};
}

__device__ __forceinline__ bool item_exists(const MarchGeometry& g, const MarchTile& tile, const MarchItem& item) {
  return tile.column + item.column < g.result.rows.width && tile.inner + item.inner < g.result.rows.inner;
}

/// Bytes from the first element of a box to that of the item, and from one step to the next.
template <class T>
__device__ __forceinline__ int item_offset(const RowBox& box, const MarchItem& item) {
  return item.plane * box.plane_pitch + item.inner * box.inner_pitch + item.column * static_cast<int>(sizeof(T));
}
template <class T>
__device__ __forceinline__ int step_pitch(const MarchGeometry& g, const RowBox& box) {
  return g.column_step != 0 ? g.column_step * static_cast<int>(sizeof(T)) : box.outer_pitch;
}

/// Where in shared memory a box begins, `at` or up to a line later.
template <class T>
__device__ __forceinline__ unsigned char* box_begin(unsigned char* at, const MarchGeometry& g,
                                                    const BoxPlace<T>& place) {
  return at + (static_cast<int>(reinterpret_cast<uintptr_t>(place.corner)) & (g.line - 1)) - box_shift(place);
}

/// The source box of a tile, whose slice (0, 0) starts at element `slice` of `tensor`.
template <class T>
__device__ __forceinline__ BoxPlace<T> source_place(const MarchGeometry& g, const MarchTile& tile, const T* tensor,
                                                    int64_t slice) {
  BoxPlace<T> place{nullptr,
                    tensor + g.source.rows.elements,
                    tile.planes,
                    tile.march - g.pad_march,
                    tile.inner - g.pad_inner,
                    tile.column - g.pad_width};
  place.corner =
      tensor + slice + place.outer * g.source.rows.outer_pitch + place.inner * g.source.rows.inner_pitch + place.column;
  return place;
}

/// The source box of a tile of forward and backward_input.
template <class T, class Params>
__device__ __forceinline__ BoxPlace<T> source_place(const Params& p, const MarchGeometry& g, const MarchTile& tile) {
  uint32_t fold;
  const uint32_t plane = g.fold.divide(static_cast<uint32_t>(tile.plane), fold);  // image and channel
  const int64_t slice = int64_t{p.multiplier.divide(plane)} * g.fold.divisor + fold;
  return source_place(g, tile, p.source, slice * g.source.slice);
}

/// The channel of a result slice.
template <class Params>
__device__ __forceinline__ int64_t channel_of(const Params& p, const MarchGeometry& g, int64_t plane) {
  uint32_t channel;
  p.channels.divide(g.fold.divide(static_cast<uint32_t>(plane)), channel);
  return channel;
}

/// Results that the thread of result column `column` has to do in it.
__device__ __forceinline__ int march_rows(const MarchGeometry& g, const MarchTile& tile, int column) {
  const int left = g.result.rows.width - column;
  if (g.column_step != 0) return min(g.strip, (left + g.column_step - 1) / g.column_step);  // 0 where left <= 0
  return left > 0 ? min(g.strip, g.result.rows.outer - tile.march) : 0;
}

/// Blocks of a multiprocessor that the registers must leave room for.
template <int Taps>
inline constexpr int kMarchBlocks = Taps > 30   ? 2
                                    : Taps > 20 ? 3
                                                : 4;

/// Steps that are unrolled: a multiple of the rows that partial results stay in reach.
template <int March>
inline constexpr int kMarchUnroll = March == 1 ? 4 : March;

/// Whether rows begin at addresses that are multiples of two elements: all source rows of a block do, or none
/// does, and result rows do and are whole pairs; or anything else.
enum class RowStart { Even, Odd, Mixed };

/// `shift`: of the source box. `result`: the tensor whose positions threads own.
template <class T>
__device__ __forceinline__ RowStart row_start(const MarchGeometry& g, int shift, const T* result) {
  constexpr int kBytes = kPair * static_cast<int>(sizeof(T));
  const RowBox& box = g.source_box;
  const RowSource& rows = g.result.rows;
  const bool regular =
      (box.plane_pitch | box.outer_pitch | box.inner_pitch) % kBytes == 0 &&
      (rows.plane_pitch | rows.outer_pitch | rows.inner_pitch | g.result.outer_pitch | rows.width) % kPair == 0 &&
      reinterpret_cast<uintptr_t>(result) % kBytes == 0;
  return !regular ? RowStart::Mixed : shift % kBytes == 0 ? RowStart::Even : RowStart::Odd;
}

/// Calls f with `start` as a constant.
template <class F>
__device__ __forceinline__ void with_row_start(RowStart start, const F& f) {
  using std::integral_constant;
  if (start == RowStart::Even) return f(integral_constant<RowStart, RowStart::Even>{});
  if (start == RowStart::Odd) return f(integral_constant<RowStart, RowStart::Odd>{});
  f(integral_constant<RowStart, RowStart::Mixed>{});
}

/// march_rows of each column of a thread, the first of which is `column`; they do not increase.
template <int Columns>
struct ColumnRows {
  int at[Columns];
  __device__ ColumnRows(const MarchGeometry& g, const MarchTile& tile, int column) {
#pragma unroll
    for (int c = 0; c < Columns; ++c) {
      const int behind = c / kPair * columns_apart(g) + c % kPair;
      at[c] = march_rows(g, tile, column + behind);
    }
  }
};

/// Two neighbours, aligned to both.
__device__ __forceinline__ void load_pair(const float* from, float* to) {
  const float2 pair = *reinterpret_cast<const float2*>(from);
  to[0] = pair.x;
  to[1] = pair.y;
}

template <class T>
__device__ __forceinline__ void load_pair(const T* from, float* to) {
  device::unpack_word<T>(*reinterpret_cast<const uint32_t*>(from), to);
}

/// What the taps of one row read for each column. `row`: the first element, `apart`: bytes to the second pair.
template <class T, RowStart Start, int Columns, int Width>
__device__ __forceinline__ void load_windows(const unsigned char* row, int apart, float (&windows)[Columns][Width]) {
  if constexpr (sizeof(T) == 4) {
    // Two words at a time, wherever the row begins: the same in all lanes of a row.
    float values[Width + 2];
    const auto* from = reinterpret_cast<const float*>(row);
    const bool odd = Start == RowStart::Mixed ? reinterpret_cast<uintptr_t>(row) % 8 != 0 : Start == RowStart::Odd;
    if (odd) {
      values[0] = from[0];
#pragma unroll
      for (int k = 1; k + 1 <= Width; k += 2) load_pair(from + k, values + k);
      if constexpr (Width % 2 != 0) values[Width] = from[Width];
    } else {
#pragma unroll
      for (int k = 0; k + 1 <= Width; k += 2) load_pair(from + k, values + k);
      if constexpr (Width % 2 == 0) values[Width] = from[Width];
    }
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      windows[0][k] = values[k];
      windows[1][k] = values[k + 1];
    }
  } else {
    // Whole words, shifted by half of one where the row is not aligned to words: the same in all lanes.
    constexpr int kWords = (Width + 2) / 2;
    const bool odd = Start == RowStart::Mixed ? reinterpret_cast<uintptr_t>(row) % 4 != 0 : Start == RowStart::Odd;
    const uint32_t order = odd ? 0x5432 : 0x3210;
#pragma unroll
    for (int group = 0; group < Columns / 2; ++group) {
      const auto* words = reinterpret_cast<const uint32_t*>(row + group * apart - (odd ? 2 : 0));
      uint32_t low = words[0];
      float values[2 * kWords];
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const uint32_t high = words[w + 1];
        device::unpack_word<T>(__byte_perm(low, high, order), values + 2 * w);
        low = high;
      }
#pragma unroll
      for (int k = 0; k < Width; ++k) {
        windows[2 * group][k] = values[k];
        windows[2 * group + 1][k] = values[k + 1];
      }
    }
  }
}

}  // namespace halo::cuda::conv::depthwise
