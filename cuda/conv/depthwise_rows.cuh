// backward_weight of depthwise convolutions with several rows of taps, on Hopper.
//
// A block walks down the rows of one channel, image after image, with a strip of columns: one warp has the copy engine
// bring the next rows of x and of the upstream gradient into a ring in shared memory, all others compute. A thread has
// two columns, every tap's sum, and the last rows of the gradient in registers. It sums few enough terms in one
// register that the error stays below the bound; the sums of blocks are added in float64, in a fixed order.
#pragma once

#include <cstdint>

#include "../device/async_copy.cuh"
#include "../device/fast_divide.h"
#include "../device/mbarrier.cuh"
#include "../device/wgmma.cuh"
#include "depthwise_tile.cuh"
#include "ordered_sum.cuh"

namespace halo::cuda::conv::depthwise {

inline constexpr int kRowsUsers = 8;  ///< most warps of a block that compute
inline constexpr int kMostRowStages = 16;
inline constexpr int kZeroBytes = kBoxLine;  ///< at the start of shared memory: what rows outside the tensor read
inline constexpr int kRowsInRegister = 32;   ///< that a thread sums before it adds the sum to those before

/// One of the two activations: slices of height x width elements.
struct RowsSide {
  const float* data = nullptr;  ///< 16-byte aligned
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
  int rows = 0;   ///< of a channel of y, over all slices
  int share = 0;  ///< of those, a block's
  int tile = 0;   ///< columns of a block, whole granules
  int pad_rows = 0, pad_columns = 0;
  int margin = 0;  ///< columns before those of a block that the ring has room for, whole granules
  int stages = 1;
};

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
__device__ __forceinline__ const float* slice_of(const RowsParams& p, const RowsSide& side, uint32_t plane,
                                                 int64_t channel) {
  uint32_t fold;
  const uint32_t image = p.fold.divide(plane, fold);
  const int64_t slice = (image * side.channels + channel) * p.fold.divisor + fold;
  return side.data + slice * side.height * side.width;
}

/// The warp that fills the ring: a lane a row of a stage.
template <int March, int Width>
__device__ __forceinline__ void load_rows(const RowsParams& p, uint32_t stages, RowRing ring, int64_t channel,
                                          int column, int split) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool of_y = lane >= March;
  const RowsSide& side = of_y ? p.y : p.x;
  const int u = of_y ? lane - March : lane;
  const int before = of_y ? 0 : p.margin;
  const int first = max(0, column - before);
  const int last = min(side.width, column + p.tile + (of_y ? 0 : Width - 1 - p.pad_columns));
  const uint32_t row_bytes = static_cast<uint32_t>(side.width) * uint32_t{sizeof(float)};
  const int skipped = (first - column + before) * int{sizeof(float)};
  const uint32_t to = stages + (of_y ? p.x.bytes : 0) + u * side.pitch + skipped;
  for_each_piece(p, split, [&](uint32_t plane, int result_row, int count) {
    int row = u + result_row - (of_y ? 0 : p.pad_rows);
    const int end = of_y ? result_row + count : min(side.height, result_row - p.pad_rows + count + March - 1);
    const float* from = slice_of(p, side, plane, of_y ? channel : channel / p.multiplier) + first +
                        static_cast<int64_t>(row) * side.width;
    for (int step = 0; step < count + March - 1; step += March, row += March, from += March * side.width) {
      uint32_t bytes = 0, lead = 0, shift = 0;
      if (lane < 2 * March && row >= 0 && row < end) {
        const auto address = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from));
        lead = address % device::kGranule;
        shift = (address - u * row_bytes - skipped) & (side.line - 1);
        bytes = (lead + (last - first) * uint32_t{sizeof(float)} + device::kGranule - 1) / device::kGranule *
                device::kGranule;
      }
      const uint32_t all = __reduce_add_sync(0xffffffffu, bytes);
      ring.acquire();
      if (lane == 0) device::barrier_expect(ring.copied(), all);
      __syncwarp();
      if (bytes != 0) {
        device::copy_bulk(to + ring.stage() * (p.x.bytes + p.y.bytes) + shift - lead,
                          reinterpret_cast<const char*>(from) - lead, bytes, ring.copied());
      }
      ring.advance();
    }
  });
}

template <RowStart Start, int March, int Width>
__device__ __forceinline__ void use_rows(const RowsParams& p, const unsigned char* shared, RowRing ring,
                                         int64_t channel, int column, int split, float (&totals)[March * Width]) {
  constexpr int kTaps = March * Width, kSize = sizeof(float);
  const int own = static_cast<int>(threadIdx.x) * kPair;
  const bool exists = own < p.tile && column + own < p.y.width;
  const unsigned char* const no_x = shared + (Start == RowStart::Odd ? kSize : 0);
  const int x_offset = kZeroBytes + (exists ? own + p.margin - p.pad_columns : p.margin - p.pad_columns) * kSize;
  const int y_offset = kZeroBytes + p.x.bytes + own * kSize;
  float taps[kTaps] = {};
  int rows_in_taps = 0;
  for_each_piece(p, split, [&](uint32_t plane, int row, int count) {
    const int x_row = row - p.pad_rows;
    const auto low = [](const float* at) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at)); };
    uint32_t x_low =
        low(slice_of(p, p.x, plane, channel / p.multiplier) + column) - p.margin * kSize + x_row * p.x.width * kSize;
    uint32_t y_low = low(slice_of(p, p.y, plane, channel) + column) + row * p.y.width * kSize;
    const int x_first = max(0, -x_row);
    const unsigned x_count = max(0, min(count + March - 1, p.x.height - x_row) - x_first);
    const int y_count = exists ? count : 0;
    float gradients[March][kPair] = {};  // row modulo March
    for (int step = 0; step < count + March - 1; step += March) {
      const unsigned char* const stage = shared + ring.stage() * (p.x.bytes + p.y.bytes);
      const unsigned char* x = stage + x_offset + (x_low & (p.x.line - 1));
      const unsigned char* y = stage + y_offset + (y_low & (p.y.line - 1));
      ring.wait();
#pragma unroll
      for (int u = 0; u < March; ++u) {
        load_pair(reinterpret_cast<const float*>(step + u < y_count ? y : shared), gradients[u]);
        float windows[kPair][Width];
        load_windows<float, Start>(static_cast<unsigned>(step + u - x_first) < x_count ? x : no_x, 0, windows);
#pragma unroll
        for (int c = 0; c < kPair; ++c) {
#pragma unroll
          for (int m = 0; m < March; ++m) {
#pragma unroll
            for (int k = 0; k < Width; ++k) {
              float& sum = taps[m * Width + k];
              sum = fmaf(gradients[(u - m + March) % March][c], windows[c][k], sum);
            }
          }
        }
        x += p.x.pitch;
        y += p.y.pitch;
      }
      ring.release();
      ring.advance();
      x_low += March * p.x.width * kSize;
      y_low += March * p.y.width * kSize;
      if ((rows_in_taps += March) >= kRowsInRegister) {
        rows_in_taps = 0;
#pragma unroll
        for (int t = 0; t < kTaps; ++t) {
          totals[t] += taps[t];
          taps[t] = 0;
        }
      }
    }
  });
#pragma unroll
  for (int t = 0; t < kTaps; ++t) totals[t] += taps[t];
}

template <int March, int Width>
__global__ void __launch_bounds__((kRowsUsers + 1) * 32, March* Width > 30 ? 1 : 2)
    depthwise_rows(const __grid_constant__ RowsParams p) {
#if __CUDA_ARCH__ >= 900
  constexpr int kTaps = March * Width;
  extern __shared__ __align__(kBoxLine) unsigned char shared[];
  __shared__ uint64_t barriers[2 * kMostRowStages];
  __shared__ float warp_sums[kRowsUsers][kTaps];
  const int users = static_cast<int>(blockDim.x) / 32 - 1, warp = static_cast<int>(threadIdx.x) / 32;
  uint32_t tile, split;
  const int64_t channel = p.column_tiles.divide(p.splits.divide(blockIdx.x, split), tile);
  const int column = static_cast<int>(tile) * p.tile;

  const RowRing ring(barriers, p.stages);
  if (threadIdx.x == 0) ring.init(users);
  const bool padded = p.margin != 0 || p.y.width + Width - 1 > p.x.width;
  const int zeros = kZeroBytes + (padded ? p.stages * (p.x.bytes + p.y.bytes) : 0);
  for (int at = static_cast<int>(threadIdx.x) * 16; at < zeros; at += static_cast<int>(blockDim.x) * 16) {
    *reinterpret_cast<float4*>(shared + at) = float4{};
  }
  device::fence_async_proxy();
  __syncthreads();

  if (warp == users) {
    load_rows<March, Width>(p, device::shared_address(shared) + kZeroBytes, ring, channel, column,
                            static_cast<int>(split));
  } else {
    float totals[kTaps] = {};
    if (p.pad_columns % kPair == 0) {
      use_rows<RowStart::Even, March, Width>(p, shared, ring, channel, column, static_cast<int>(split), totals);
    } else {
      use_rows<RowStart::Odd, March, Width>(p, shared, ring, channel, column, static_cast<int>(split), totals);
    }
    for_each_warp_sum(totals, [&](int t, float sum) { warp_sums[warp][t] = sum; });
  }
  __syncthreads();
  for (int t = static_cast<int>(threadIdx.x); t < kTaps; t += static_cast<int>(blockDim.x)) {
    double sum = 0;
    for (int w = 0; w < users; ++w) sum += warp_sums[w][t];
    const auto splits = static_cast<int64_t>(p.column_tiles.divisor) * p.splits.divisor;
    p.partials[(channel * kTaps + t) * splits + tile * p.splits.divisor + split] = sum;
  }
#endif
}

}  // namespace halo::cuda::conv::depthwise
