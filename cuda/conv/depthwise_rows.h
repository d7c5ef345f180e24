// backward_weight of depthwise convolutions with several rows of taps, on Hopper: what depthwise_rows.cu hands to its
// kernels.
#pragma once

#include <cstdint>

#include "../device/fast_divide.h"
#include "row_box.h"
#include <cuda_runtime.h>

namespace halo::cuda::conv::depthwise {

inline constexpr int kMostRowStages = 16;
inline constexpr int kRowsUsers = 8;         ///< most warps of a block that compute, float32
inline constexpr int kHalfRowsUsers = 16;    ///< the same, half types
inline constexpr int kHalfRowsColumns = 64;  ///< of such a warp
inline constexpr int kMostHalfTaps = 9;      ///< of a row, half types: 16 columns of x meet 8 of y

/// One of the two activations: slices of height x width elements.
struct RowsSide {
  const void* data = nullptr;
  const void* end = nullptr;  ///< nothing behind it is read
  int64_t channels = 1;
  int height = 1, width = 1;
  /// Modulo so many bytes, addresses in the ring are congruent to those in the tensor: kBoxLine, the fastest, or a
  /// granule where zeros beside rows must stay where they are.
  int line = kBoxLine;
  int pitch = 0;  ///< bytes from row to row in the ring
  int bytes = 0;  ///< of a stage
};

struct RowsParams {
  RowsSide x, y;
  double* partials = nullptr;  ///< [channels of y * taps, column tiles * splits]
  int multiplier = 1;          ///< channels of y that one channel of x feeds
  FastDivide fold, height;     ///< slices of a channel of an image; rows of a slice of y
  FastDivide column_tiles, splits;
  int march = 1, width = 1;  ///< rows and columns of taps
  int rows = 0;              ///< of a channel of y, over all slices
  int share = 0;             ///< of those, a block's
  int tile = 0;              ///< columns of a block, whole granules
  int users = 1;             ///< warps of a block that compute
  int pad_rows = 0, pad_columns = 0;
  int margin = 0;  ///< columns before those of a block that the ring has room for, whole granules
  int stages = 1;
  int stage_rows = 1;  ///< rows of either side in a stage
  int run = 1;         ///< rows that one order copies: all of a stage where no gaps lie between them
  int shared_bytes = 0;
};

template <class T>
void launch_half_rows(const RowsParams& params, dim3 blocks, cudaStream_t stream);

}  // namespace halo::cuda::conv::depthwise
