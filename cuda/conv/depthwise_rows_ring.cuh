// A ring of rows in shared memory, on Hopper: a block walks down the rows of one channel, image after image, with a
// strip of columns; one warp has the copy engine bring the next rows of x and of the upstream gradient.
#pragma once

#include <cstdint>

#include "../device/async_copy.cuh"
#include "../device/grid_order.cuh"
#include "../device/mbarrier.cuh"
#include "../device/wgmma.cuh"
#include "depthwise_rows.h"

namespace halo::cuda::conv::depthwise {

/// The ring as one warp sees it.
class RowRing {
 public:
  __device__ RowRing(uint64_t* barriers, int stages) : full_(device::shared_address(barriers)), stages_(stages) {}
  __device__ void init(int users) const {
    for (int i = 0; i < stages_; ++i) {
      device::barrier_init(full_ + 8 * i, 1);
      device::barrier_init(empty(i), users);
    }
    device::barrier_init_fence();
  }
  __device__ int stage() const { return stage_; }
  __device__ uint32_t copied() const { return full_ + 8 * stage_; }
  __device__ void acquire() const { device::barrier_wait(empty(stage_), parity_ ^ 1); }
  __device__ void wait() const { device::barrier_wait(copied(), parity_); }
  __device__ void release() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) device::barrier_arrive(empty(stage_));
  }
  __device__ void advance() {
    if (++stage_ == stages_) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  __device__ uint32_t empty(int i) const { return full_ + 8 * (kMostRowStages + i); }
  uint32_t full_;
  int stages_;
  int stage_ = 0;
  uint32_t parity_ = 0;
};

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
__device__ __forceinline__ void load_rows(const RowsParams& p, uint32_t stages, RowRing ring, const RowsBlock& block) {
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
    const auto* const slice = reinterpret_cast<const char*>(slice_of<T>(p, side, plane, channel) + first);
    for (int step = 0; step < count + p.march - 1; step += p.stage_rows) {
      const int row = max(0, start + step + u), offset = row - start - step;
      const int rows = u < p.stage_rows ? min(end, start + step + min(u + p.run, p.stage_rows)) - row : 0;
      const char* from = slice + int64_t{row} * row_bytes;
      const uint32_t lead = low_bits(from) % device::kGranule;
      const uint32_t shift = (low_bits(from) - offset * row_bytes - skipped) & (side.line - 1);
      const uint32_t target = to + ring.stage() * (p.x.bytes + p.y.bytes) + offset * side.pitch + shift - lead;
      const uint32_t length = lead + (rows - 1) * row_bytes + (last - first) * kSize;
      uint32_t bytes =
          rows > 0 && last > first ? (length + device::kGranule - 1) / device::kGranule * device::kGranule : 0;
      from -= lead;
      ring.acquire();
      if (from + bytes > static_cast<const char*>(side.end) && bytes != 0) {  // a granule that ends behind the tensor
        bytes -= device::kGranule;
        for (uint32_t b = max(bytes, lead); b < length; b += kSize) {
          *static_cast<T*>(__cvta_shared_to_generic(target + b)) = *reinterpret_cast<const T*>(from + b);
        }
      }
      const uint32_t all = __reduce_add_sync(0xffffffffu, bytes);
      __syncwarp();
      if (lane == 0) device::barrier_expect(ring.copied(), all);
      __syncwarp();
      if (bytes != 0) device::copy_bulk(target, from, bytes, ring.copied());
      ring.advance();
    }
  });
}

}  // namespace halo::cuda::conv::depthwise
