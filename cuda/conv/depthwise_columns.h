// What depthwise_columns.cu hands to the kernels of depthwise_columns.cuh. The launchers are instantiated a storage
// type a file, in depthwise_columns_<type>.cu.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include "../device/fast_divide.h"
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

/// Forward, and backward_input where the stride is 1.
template <class T>
void launch_columns(const ColumnShape& shape, const ColumnParams<T>& params, cudaStream_t stream);
/// backward_input with stride 2.
template <class T>
void launch_columns_input(const ColumnShape& shape, const ColumnParams<T>& params, cudaStream_t stream);
template <class T>
void launch_columns_weight(const ColumnShape& shape, const ColumnWeightParams<T>& params, cudaStream_t stream);

}  // namespace halo::cuda::conv::depthwise
