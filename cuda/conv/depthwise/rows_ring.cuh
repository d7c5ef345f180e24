// A ring of rows in shared memory, on Hopper: a block walks down the rows of one channel, image after image, with a
// strip of columns; one warp has the copy engine bring the next rows of x and of the upstream gradient. What
// rows.cu hands to its kernels.
#pragma once

#include <cstdint>

#include "../../device/fast_divide.h"
#include "../../device/grid_order.cuh"
#include "../granule_rows.cuh"
#include "../row_box.h"
#include "../stage_ring.cuh"
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

static_assert(kMostRowStages <= Ring::kMost);

/// Calls f(image and fold, first row, rows) for each piece of a block's rows.
template <class F>
__device__ __forceinline__ void for_each_piece(const RowsParams& p, int split, const F& f) {
  const int last = min((split + 1) * p.share, p.rows);
  for (int at = split * p.share; at < last;) {
    uint32_t row;
    const uint32_t plane = p.height.divide(static_cast<uint32_t>(at), row);
    const int count = min(p.y.height - static_cast<int>(row), last - at);
    f(plane, static_cast<int>(row), count);
    at += count;
  }
}

/// Element 0 of a slice.
template <class T>
__device__ __forceinline__ const T* slice_of(const RowsParams& p, const RowsSide& side, uint32_t plane,
                                             int64_t channel) {
  uint32_t fold;
  const uint32_t image = p.fold.divide(plane, fold);
  const int64_t slice = (image * side.channels + channel) * p.fold.divisor + fold;
  return static_cast<const T*>(side.data) + slice * side.height * side.width;
}

/// Low bits of an address.
__device__ __forceinline__ uint32_t low_bits(const void* at) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at));
}

/// What a block works on.
struct RowsBlock {
  int64_t channel;
  int column;
  int split;
  int64_t partial;  ///< its place among those of a tap
  __device__ explicit RowsBlock(const RowsParams& p) {
    uint32_t tile, rest;
    channel = p.column_tiles.divide(p.splits.divide(blockIdx.x, rest), tile);
    column = static_cast<int>(tile) * p.tile;
    split = static_cast<int>(rest);
    partial = int64_t{tile} * p.splits.divisor + rest;
  }
  __device__ void store(const RowsParams& p, int tap, double sum) const {
    const auto splits = static_cast<int64_t>(p.column_tiles.divisor) * p.splits.divisor;
    p.partials[(channel * p.march * p.width + tap) * splits + partial] = sum;
  }
};

/// The warp that fills the ring at `stages`: half of the lanes give orders for rows of x, the others of y.
template <class T>
__device__ __forceinline__ void load_rows(const RowsParams& p, uint32_t stages, Ring ring, const RowsBlock& block) {
  constexpr int kSize = sizeof(T);
  const int lane = static_cast<int>(threadIdx.x % 32), u = lane % 16 * p.run;
  const bool of_y = lane >= 16;
  const RowsSide& side = of_y ? p.y : p.x;
  const int before = of_y ? 0 : p.margin;
  const int first = max(0, block.column - before);
  const int last = min(side.width, block.column + p.tile + (of_y ? 0 : p.width - 1 - p.pad_columns));
  const uint32_t row_bytes = static_cast<uint32_t>(side.width) * kSize;
  const int skipped = (first - block.column + before) * kSize;
  const uint32_t to = stages + (of_y ? p.x.bytes : 0) + skipped;
  for_each_piece(p, block.split, [&](uint32_t plane, int result_row, int count) {
    const int start = result_row - (of_y ? 0 : p.pad_rows);
    const int end = of_y ? start + count : min(side.height, start + count + p.march - 1);
    const int64_t channel = of_y ? block.channel : block.channel / p.multiplier;
    const T* const slice = slice_of<T>(p, side, plane, channel) + first;
    for (int step = 0; step < count + p.march - 1; step += p.stage_rows) {
      const int row = max(0, start + step + u), offset = row - start - step;
      const int rows = u < p.stage_rows ? min(end, start + step + min(u + p.run, p.stage_rows)) - row : 0;
      const T* const from = slice + int64_t{row} * side.width;
      const uint32_t lead = lead_of(from);
      const uint32_t shift = (low_bits(from) - offset * row_bytes - skipped) & (side.line - 1);
      const uint32_t target = to + ring.slot() * (p.x.bytes + p.y.bytes) + offset * side.pitch + shift - lead;
      const uint32_t length = (rows - 1) * row_bytes + (last - first) * kSize;
      ring.wait_released();
      start_runs(ring.copied(), from, rows > 0 && last > first ? length : 0, target, from,
                 static_cast<const T*>(side.end), lane);
      ring.advance();
    }
  });
}

}  // namespace halo::cuda::conv::depthwise
