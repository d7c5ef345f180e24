// What columns.cu hands to the kernels of columns.cuh, and what a thread of these reads: where its
// results begin, and rows of the source straight from global memory, several loads under way at once.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <type_traits>

#include "../../device/fast_divide.h"
#include "../../device/number.cuh"
#include "depthwise.h"

namespace halo::cuda::conv::depthwise {

inline constexpr int kColumnThreads = 128;
inline constexpr int kTapsAlong = 4, kMoreTapsAlong = 8;  ///< kernels of one row are compiled for up to so many taps

/// Results that a thread computes at once: rows of one column, `dilation` apart; where the kernel has one row, columns
/// `lanes` apart.
inline constexpr int kColumnRows = 7;    ///< divides the heights of many networks
inline constexpr int kColumnPairs = 4;   ///< pairs of rows, of an input gradient with stride 2
inline constexpr int kColumnPieces = 4;  ///< columns

/// Taps and stride, the same along height and width where the kernel has more than one row.
struct ColumnShape {
  int height = 0, width = 0;  ///< taps that are compiled: width is a bound where height is 1
  int stride = 0;
  int columns = 1;  ///< neighbouring results of a row that a thread computes: 2 only of half types, with rows of taps
};

/// Extents of one plane and how its results are divided among threads. Plain data, passed to kernels by value.
struct ColumnGeometry {
  int source_height = 1, source_width = 1, result_height = 1, result_width = 1;
  int pad_height = 0, pad_width = 0, dilation_height = 1, dilation_width = 1;
  int taps = 1;                           ///< of a row
  int strip = 1;                          ///< results of a thread, whole rounds; input gradients with stride 2: pairs
  FastDivide lanes, groups, by_dilation;  ///< threads along the width; of a plane beside those
  FastDivide fold;                        ///< planes of a channel of a sample
  int64_t items = 0;                      ///< threads; backward_weight: of one channel, strips
};

template <class T>
using ColumnParams = SumParams<T, ColumnGeometry>;

template <class T>
struct ColumnWeightParams {
  const T* x = nullptr;
  const T* y = nullptr;              ///< upstream gradient
  double* partials = nullptr;        ///< [channels * taps, splits]
  int64_t x_pitch = 0, y_pitch = 0;  ///< elements, from sample to sample
  int multiplier = 1;                ///< channels of y that one channel of x feeds
  int threads = kColumnThreads;      ///< of a block
  FastDivide splits;                 ///< blocks of a channel
  unsigned blocks = 0;
  ColumnGeometry geometry;
};

/// Where a thread's results begin.
struct ColumnPlace {
  int64_t plane;
  int row, column;
};

/// Strips of a plane: pieces of its rows where Height is 1, else rows `dilation` apart.
template <int Height, int Columns>
__device__ __forceinline__ ColumnPlace column_place(const ColumnGeometry& g, uint32_t index) {
  uint32_t lane, group;
  const uint32_t plane = g.groups.divide(g.lanes.divide(index, lane), group);
  if constexpr (Height == 1) {
    return {plane, 0, static_cast<int>(group * static_cast<uint32_t>(g.strip) * g.lanes.divisor + lane)};
  } else {
    uint32_t offset;
    const uint32_t block = g.by_dilation.divide(group, offset);
    const uint32_t row = block * static_cast<uint32_t>(g.strip * g.dilation_height) + offset;
    return {plane, static_cast<int>(row), static_cast<int>(lane) * Columns};
  }
}

template <class T>
__device__ __forceinline__ T load_where(bool exists, const T* from) {
  return exists ? *from : T{};
}

/// The same pointer, which the compiler does not take apart again: an address behind it is then one instruction.
template <class T>
__device__ __forceinline__ T* kept_whole(T* pointer) {
  asm("" : "+l"(pointer));
  return pointer;
}

/// With two columns a thread, they begin at an even column of the source, the first of its taps at one of this parity.
template <int Width>
inline constexpr int kTapParity = Width / 2 % 2;

/// Two neighbours, aligned to both.
template <class T>
__device__ __forceinline__ uint32_t load_word_where(bool exists, const T* from) {
  return exists ? *reinterpret_cast<const uint32_t*>(from) : 0;
}

/// Calls use(t, m, values) for the results t and rows of taps m of a thread at `place`: values[c][k] is what tap (m, k)
/// of result t in column c reads, 0 outside. Rows that several results read are loaded once; kInFlight loads are under
/// way at once.
template <int Results, int Height, int Width, int Stride, int Columns, class T, class F>
__device__ __forceinline__ void for_each_row_read(const ColumnGeometry& g, const ColumnPlace& place, const T* source,
                                                  const F& use) {
  constexpr bool kWords = Columns == 2;  // the columns are loaded in pairs
  constexpr int kLoads = kWords ? (kTapParity<Width> + Stride + Width + 1) / 2 : Width;
  constexpr int kInFlight = Width == 5 ? 25 : 32;
  constexpr int kRows = Height == 1 ? Results : (Results - 1) * Stride + Height, kRound = kInFlight / kLoads;
  const int first = place.column * Stride - g.pad_width - (kWords ? kTapParity<Width> : 0);
  const int apart = kWords ? 2 : g.dilation_width;
  const T* columns[kLoads];
  bool exists[kLoads];
#pragma unroll
  for (int k = 0; k < kLoads; ++k) {
    const int column = first + k * apart;
    columns[k] = kWords && k > 0 ? columns[0] + 2 * k : kept_whole(source + column);
    exists[k] = static_cast<unsigned>(column) < static_cast<unsigned>(g.source_width);
  }
#pragma unroll
  for (int round = 0; round < kRows; round += kRound) {
    std::conditional_t<kWords, uint32_t, T> loaded[kRound][kLoads];
#pragma unroll
    for (int r = 0; r < kRound && round + r < kRows; ++r) {
      if constexpr (Height == 1) {
        const int behind = (round + r) * static_cast<int>(g.lanes.divisor) * Stride;
#pragma unroll
        for (int k = 0; k < kLoads; ++k) {
          const int column = first + k * apart + behind;
          const bool inside = static_cast<unsigned>(column) < static_cast<unsigned>(g.source_width);
          loaded[r][k] = load_where(k < g.taps && inside, columns[k] + behind);
        }
      } else {
        const int row = place.row * Stride - g.pad_height + (round + r) * g.dilation_height;
        const bool row_exists = static_cast<unsigned>(row) < static_cast<unsigned>(g.source_height);
        const int behind = row * g.source_width;
        if constexpr (kWords) {
          const T* const from = kept_whole(columns[0] + behind);
#pragma unroll
          for (int k = 0; k < kLoads; ++k) loaded[r][k] = load_word_where(row_exists && exists[k], from + 2 * k);
        } else {
#pragma unroll
          for (int k = 0; k < kLoads; ++k) loaded[r][k] = load_where(row_exists && exists[k], columns[k] + behind);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRound && round + r < kRows; ++r) {
      float values[Columns][Width];
      if constexpr (kWords) {
        float row[2 * kLoads];
#pragma unroll
        for (int k = 0; k < kLoads; ++k) device::unpack_word<T>(loaded[r][k], row + 2 * k);
#pragma unroll
        for (int k = 0; k < Width; ++k) {
          values[0][k] = row[kTapParity<Width> + k];
          values[1][k] = row[kTapParity<Width> + Stride + k];
        }
      } else {
#pragma unroll
        for (int k = 0; k < Width; ++k) values[0][k] = device::to_accumulator(loaded[r][k]);
      }
      const int s = round + r;
#pragma unroll
      for (int m = 0; m < Height; ++m) {
        if constexpr (Height == 1) {
          use(s, 0, values);
        } else {
          if (s >= m && (s - m) % Stride == 0 && (s - m) / Stride < Results) use((s - m) / Stride, m, values);
        }
      }
    }
  }
}

}  // namespace halo::cuda::conv::depthwise
