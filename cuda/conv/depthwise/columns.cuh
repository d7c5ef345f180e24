// Depthwise convolution straight from global memory: neighbouring threads have neighbouring columns, so that loads and
// stores are whole sectors, and what several threads read comes from the first-level cache. A thread computes some
// rows of its column, all loads of which are under way at once.
#pragma once

#include <type_traits>

#include "../../device/activation.cuh"
#include "../../device/number.cuh"
#include "../../launch.h"
#include "../ordered_sum.cuh"
#include "columns_read.cuh"

namespace halo::cuda::conv::depthwise {

/// Elements of a plane.
__device__ __forceinline__ int64_t source_slice(const ColumnGeometry& g) {
  return int64_t{g.source_height} * g.source_width;
}
__device__ __forceinline__ int64_t result_slice(const ColumnGeometry& g) {
  return int64_t{g.result_height} * g.result_width;
}

/// Stores what a thread has of a row.
template <class T, int Columns>
__device__ __forceinline__ void store_columns(T* to, const float (&sums)[Columns]) {
  if constexpr (Columns == 1) {
    *to = device::from_accumulator<T>(sums[0]);
  } else {
    *reinterpret_cast<uint32_t*>(to) = device::pack_word<T>(sums);
  }
}

/// The source plane and the channel of a result plane.
template <class T>
__device__ __forceinline__ const T* source_plane(const ColumnParams<T>& p, int64_t plane, int64_t& channel) {
  uint32_t fold, c;
  const uint32_t sample = p.geometry.fold.divide(static_cast<uint32_t>(plane), fold);  // and channel
  p.channels.divide(sample, c);
  channel = c;
  const int64_t source = int64_t{p.multiplier.divide(sample)} * p.geometry.fold.divisor + fold;
  return p.source + source * source_slice(p.geometry);
}

/// Blocks of a multiprocessor that the registers must leave room for.
template <int Width, int Columns>
inline constexpr int kColumnBlocks = (Width <= 4 ? 8 : 6) - (Columns - 1);
template <int Width, int Columns>
inline constexpr int kColumnWeightBlocks = (Width <= 4 ? 7 : 5) - (Columns - 1);

template <int Height>
inline constexpr int kColumnResults = Height == 1 ? kColumnPieces : kColumnRows;

template <class T, int Height, int Width, int Stride, int Columns>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocks<Width, Columns>)
    depthwise_columns(const __grid_constant__ ColumnParams<T> p) {
  constexpr int kResults = kColumnResults<Height>;
  const ColumnGeometry& g = p.geometry;
  const int64_t index = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  if (index >= g.items) return;
  ColumnPlace place = column_place<Height, Columns>(g, static_cast<uint32_t>(index));
  int64_t channel;
  const T* const source = source_plane(p, place.plane, channel);
  T* const result = kept_whole(p.result + place.plane * result_slice(g));
  const int taps_of_channel = Height * g.taps, step = p.flip ? -1 : 1;
  const T* const weight = p.weight + channel * taps_of_channel + (p.flip ? taps_of_channel - 1 : 0);
  float taps[Height][Width];
#pragma unroll
  for (int m = 0; m < Height; ++m) {
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      const int tap = (m * g.taps + k) * step;
      taps[m][k] = device::to_accumulator(load_where(Height > 1 || k < g.taps, weight + tap));
    }
  }
  const float bias = device::to_accumulator(load_where(p.bias != nullptr, p.bias + channel));
  for (int done = 0; done < g.strip; done += kResults) {
    if (place.row >= g.result_height || place.column >= g.result_width) return;
    float sums[kResults][Columns];
#pragma unroll
    for (int t = 0; t < kResults; ++t) {
#pragma unroll
      for (int c = 0; c < Columns; ++c) sums[t][c] = bias;
    }
    for_each_row_read<kResults, Height, Width, Stride, Columns>(
        g, place, source, [&](int t, int m, const auto& values) {
#pragma unroll
          for (int c = 0; c < Columns; ++c) {
#pragma unroll
            for (int k = 0; k < Width; ++k) sums[t][c] = fmaf(taps[m][k], values[c][k], sums[t][c]);
          }
        });
    if (p.activation.kind != ActivationKind::None) {
#pragma unroll
      for (int t = 0; t < kResults; ++t) {
#pragma unroll
        for (int c = 0; c < Columns; ++c) sums[t][c] = device::call_activation(p.activation, sums[t][c]);
      }
    }
#pragma unroll
    for (int t = 0; t < kResults; ++t) {
      if (place.row < g.result_height && place.column < g.result_width) {
        store_columns<T>(result + (place.row * g.result_width + place.column), sums[t]);
      }
      if constexpr (Height == 1) {
        place.column += static_cast<int>(g.lanes.divisor);
      } else {
        place.row += g.dilation_height;
      }
    }
  }
}

/// backward_input with stride 2. Position i of x is seen by the taps k of the parity of i + padding, from positions
/// (i + padding - k) / 2 of y. A thread has pairs of rows of x, one of each parity.
template <class T, int Height, int Width, int Columns>
__global__ void __launch_bounds__(kColumnThreads, kColumnBlocks<Width, Columns>)
    depthwise_columns_input(const __grid_constant__ ColumnParams<T> p) {
  constexpr int kResults = Height == 1 ? kColumnPieces : kColumnPairs;
  constexpr int kReadRows = (Height + 1) / 2, kReadColumns = (Width + 1) / 2;  // of y by one result
  constexpr int kParities = Height == 1 ? 1 : 2;
  const ColumnGeometry& g = p.geometry;
  const int64_t index = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  if (index >= g.items) return;
  ColumnPlace place = column_place<Height, Columns>(g, static_cast<uint32_t>(index));
  int64_t channel;
  const T* const source = kept_whole(source_plane(p, place.plane, channel));
  T* const result = kept_whole(p.result + place.plane * result_slice(g));
  // Tap j of a column is the j-th of its parity; that of the lanes is even: the same for all pieces. Of two columns,
  // the tap that sees the j-th column of y from the right.
  const int parity = Columns == 2 ? -kTapParity<Width> : (place.column + g.pad_width) & 1;
  const T* const weight = p.weight + channel * Height * g.taps;
  float taps[Height][Columns][kReadColumns];
#pragma unroll
  for (int m = 0; m < Height; ++m) {
#pragma unroll
    for (int c = 0; c < Columns; ++c) {
#pragma unroll
      for (int j = 0; j < kReadColumns; ++j) {
        const int k = parity + c + 2 * j;
        taps[m][c][j] = device::to_accumulator(load_where(k >= 0 && k < g.taps, weight + m * g.taps + k));
      }
    }
  }
  // The row of y that tap 0 of the first pair sees, and the columns that the taps of the first result see.
  const int first_row = Height == 1 ? 0 : place.row + (g.pad_height >> 1);
  const int first_column = (place.column + Columns - 1 + g.pad_width) >> 1;
  for (int done = 0; done < g.strip; done += kResults) {
    if (Height > 1 && 2 * (first_row + done) - g.pad_height >= g.result_height) return;
    constexpr int kRows = Height == 1 ? kResults : kResults + kReadRows - 1;
    T loaded[kRows][kReadColumns];
#pragma unroll
    for (int s = 0; s < kRows; ++s) {
      const int row = Height == 1 ? 0 : first_row + done + s - (kReadRows - 1);
      const int behind = Height == 1 ? (done + s) * static_cast<int>(g.lanes.divisor) / 2 : 0;
#pragma unroll
      for (int j = 0; j < kReadColumns; ++j) {
        const int column = first_column + behind - j;
        const bool exists = (Columns == 2 || parity + 2 * j < g.taps) &&
                            static_cast<unsigned>(column) < static_cast<unsigned>(g.source_width) &&
                            static_cast<unsigned>(row) < static_cast<unsigned>(g.source_height);
        loaded[s][j] = load_where(exists, source + (row * g.source_width + column));
      }
    }
    float sums[kResults][kParities][Columns] = {};
#pragma unroll
    for (int s = 0; s < kRows; ++s) {
      float values[kReadColumns];
#pragma unroll
      for (int j = 0; j < kReadColumns; ++j) values[j] = device::to_accumulator(loaded[s][j]);
#pragma unroll
      for (int t = 0; t < kResults; ++t) {
        const int i = Height == 1 ? 0 : t - s + kReadRows - 1;  // result t reads this row through taps 2 i and 2 i + 1
        if (Height == 1 && t != s) continue;
#pragma unroll
        for (int q = 0; q < kParities; ++q) {
          const int m = 2 * i + q;
          if (i < 0 || m >= Height) continue;
#pragma unroll
          for (int c = 0; c < Columns; ++c) {
#pragma unroll
            for (int j = 0; j < kReadColumns; ++j) {
              if (Columns == 2 && (c + 2 * j < kTapParity<Width> || c + 2 * j - kTapParity<Width> >= Width)) continue;
              sums[t][q][c] = fmaf(taps[m][c][j], values[j], sums[t][q][c]);
            }
          }
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kResults; ++t) {
#pragma unroll
      for (int q = 0; q < kParities; ++q) {
        const int column = Height == 1 ? place.column + (done + t) * static_cast<int>(g.lanes.divisor) : place.column;
        const int row = Height == 1 ? 0 : 2 * (first_row + done + t) + q - g.pad_height;
        if (row >= 0 && row < g.result_height && column < g.result_width) {
          store_columns<T>(result + (row * g.result_width + column), sums[t][q]);
        }
      }
    }
  }
}

template <class T, int Height, int Width, int Stride, int Columns>
__global__ void __launch_bounds__(kColumnThreads, kColumnWeightBlocks<Width, Columns>)
    depthwise_columns_weight(const __grid_constant__ ColumnWeightParams<T> p) {
  constexpr int kTaps = Height * Width, kResults = kColumnResults<Height>;
  __shared__ float warp_sums[kColumnThreads / 32][kTaps];
  const ColumnGeometry& g = p.geometry;
  uint32_t split;
  const int64_t channel = p.splits.divide(blockIdx.x, split);
  const T* const x = p.x + channel / p.multiplier * g.fold.divisor * source_slice(g);
  const T* const y = p.y + channel * g.fold.divisor * result_slice(g);
  float taps[kTaps] = {};
  for (int64_t index = int64_t{split} * blockDim.x + threadIdx.x; index < g.items;
       index += int64_t{p.splits.divisor} * blockDim.x) {
    const ColumnPlace place = column_place<Height, Columns>(g, static_cast<uint32_t>(index));
    uint32_t fold;
    const int64_t sample = g.fold.divide(static_cast<uint32_t>(place.plane), fold);
    const T* const gradient = kept_whole(y + sample * p.y_pitch + fold * result_slice(g));
    float gradients[kResults][Columns];
#pragma unroll
    for (int t = 0; t < kResults; ++t) {
      const int row = Height == 1 ? 0 : place.row + t * g.dilation_height;
      const int column = Height == 1 ? place.column + t * static_cast<int>(g.lanes.divisor) : place.column;
      const bool exists = row < g.result_height && column < g.result_width;
      const T* const from = gradient + (row * g.result_width + column);
      if constexpr (Columns == 2) {
        device::unpack_word<T>(load_word_where(exists, from), gradients[t]);
      } else {
        gradients[t][0] = device::to_accumulator(load_where(exists, from));
      }
    }
    for_each_row_read<kResults, Height, Width, Stride, Columns>(
        g, place, x + sample * p.x_pitch + fold * source_slice(g), [&](int t, int m, const auto& values) {
#pragma unroll
          for (int c = 0; c < Columns; ++c) {
#pragma unroll
            for (int k = 0; k < Width; ++k) {
              float& sum = taps[m * Width + k];
              sum = fmaf(gradients[t][c], values[c][k], sum);
            }
          }
        });
  }
  for_each_warp_sum(taps, [&](int t, float sum) { warp_sums[threadIdx.x / 32][t] = sum; });
  __syncthreads();
  const int used = Height > 1 ? kTaps : g.taps;
  for (int t = static_cast<int>(threadIdx.x); t < used; t += static_cast<int>(blockDim.x)) {
    double sum = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += static_cast<double>(warp_sums[warp][t]);
    p.partials[(channel * used + t) * p.splits.divisor + split] = sum;
  }
}

/// Calls f(height, width, columns) as constants.
template <class T, class F>
void with_column_taps(const ColumnShape& shape, const F& f) {
  using std::integral_constant;
  const auto is = [&](int height, int width) { return shape.height == height && shape.width == width; };
  const auto with_columns = [&](auto taps) {
    if constexpr (sizeof(T) == 2) {
      if (shape.columns == 2) return f(taps, taps, integral_constant<int, 2>{});
    }
    f(taps, taps, integral_constant<int, 1>{});
  };
  constexpr integral_constant<int, 1> one;
  if (is(3, 3)) return with_columns(integral_constant<int, 3>{});
  if (is(5, 5)) return with_columns(integral_constant<int, 5>{});
  if (is(1, kTapsAlong)) return f(one, integral_constant<int, kTapsAlong>{}, one);
  f(one, integral_constant<int, kMoreTapsAlong>{}, one);
}

inline dim3 column_blocks(int64_t items) {
  return dim3(static_cast<unsigned>((items + kColumnThreads - 1) / kColumnThreads));
}

/// Forward, and backward_input where the stride is 1.
template <class T>
void launch_columns(const ColumnShape& shape, const ColumnParams<T>& params, cudaStream_t stream) {
  with_column_taps<T>(shape, [&](auto height, auto width, auto columns) {
    const auto kernel = shape.stride == 1 ? depthwise_columns<T, height(), width(), 1, columns()>
                                          : depthwise_columns<T, height(), width(), 2, columns()>;
    launch("conv depthwise columns", kernel, column_blocks(params.geometry.items), dim3(kColumnThreads), 0, stream,
           params);
  });
}

/// backward_input with stride 2.
template <class T>
void launch_columns_input(const ColumnShape& shape, const ColumnParams<T>& params, cudaStream_t stream) {
  with_column_taps<T>(shape, [&](auto height, auto width, auto columns) {
    launch("conv depthwise columns backward_input", depthwise_columns_input<T, height(), width(), columns()>,
           column_blocks(params.geometry.items), dim3(kColumnThreads), 0, stream, params);
  });
}

template <class T>
void launch_columns_weight(const ColumnShape& shape, const ColumnWeightParams<T>& params, cudaStream_t stream) {
  with_column_taps<T>(shape, [&](auto height, auto width, auto columns) {
    const auto kernel = shape.stride == 1 ? depthwise_columns_weight<T, height(), width(), 1, columns()>
                                          : depthwise_columns_weight<T, height(), width(), 2, columns()>;
    launch("conv depthwise columns backward_weight", kernel, dim3(params.blocks),
           dim3(static_cast<unsigned>(params.threads)), 0, stream, params);
  });
}

}  // namespace halo::cuda::conv::depthwise
