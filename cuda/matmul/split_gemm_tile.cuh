// What the warpgroups of the float32-accurate matrix product (split_gemm.cuh) share: tiles, rings of buffers, and the
// sum that stands in for results that are not finite.
#pragma once

#include "../device/async_copy.cuh"
#include "../device/mbarrier.cuh"
#include "../device/shared_words.cuh"
#include "../device/tf32_split.cuh"
#include "../device/wgmma.cuh"
#include "split_gemm_plan.h"
#include <cuda.h>

namespace halo::cuda {

struct SplitGemmParams {
  CUtensorMap rows_map, columns_map;
  const float* rows;
  const float* columns;
  float* target;
  float* partial;  ///< [split][batch][row][column] as the target orders them, or null
  float alpha, beta;
  SplitGemmPlan plan;
};

/// Rows and N columns of a tile; Deep: whether the rows operand is contiguous along the depth.
template <int Rows, int N, bool Deep>
struct SplitGemmTile {
  static constexpr int kRows = Rows;
  static constexpr int kConsumers = Rows / 64;
  static constexpr int kColumns = N;
  static constexpr bool kDeep = Deep;
  static constexpr int kWgmmaColumns = 64;  ///< their partial sums fit beside the sums
  static constexpr int kHalves = N / kWgmmaColumns;
  static constexpr int kThreads = (kConsumers + 1) * 128;
  /// Registers a thread: entry has 128 (65,536 / 512), or 168 where only two warpgroups multiply.
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 152 : 200;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 56 : 104;
  /// Floats between depths of a rows tile that is contiguous along the rows: 8 modulo 32, for the banks.
  static constexpr int kRowsPitch = Rows + 8;
  static constexpr int kRowsBytes = kSplitGemmDepth * (Deep ? Rows : kRowsPitch) * 4;
  static constexpr int kRawBytes = kSplitGemmDepth * N * 4;
  static constexpr int kPartBytes = kSplitGemmDepth * N * 4;  ///< of the high or the low parts of a stage's columns
  /// Rings: split columns, raw columns (one stage being split, two on their way), rows.
  static constexpr int kTileSlots = 2, kRawSlots = 3, kRowSlots = 4;
  static constexpr int kSharedBytes =
      kRowSlots * kRowsBytes + kRawSlots * kRawBytes + kTileSlots * 2 * kPartBytes + 1024 + 128;
  static_assert(Rows % 64 == 0 && N % 64 == 0 && kRowsBytes % 1024 == 0 && kSharedBytes <= 227 * 1024);
};

namespace split_gemm {

using namespace halo::cuda::device;

/// What one block computes next.
struct Work {
  int64_t batch, row, column;  ///< the tile's first row and column
  int64_t split, first_stage;
  int stages;

  __device__ Work(const SplitGemmPlan& p, int64_t tile, int rows, int columns) {
    column = tile % p.column_tiles * columns;
    tile /= p.column_tiles;
    row = tile % p.row_tiles * rows;
    tile /= p.row_tiles;
    split = tile % p.splits;
    batch = tile / p.splits;
    first_stage = p.stages * split / p.splits;
    stages = static_cast<int>(p.stages * (split + 1) / p.splits - first_stage);
  }
};

/// A position in a ring of buffers: its index and the parity of its round.
template <int Size>
struct Slot {
  int index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++index == Size) index = 0, parity ^= 1;
  }
};

template <class Tile>
struct Shared {
  uint32_t base;  ///< a multiple of 1024, as the copy engine's swizzle wants
  __device__ explicit Shared(const void* memory) : base((shared_address(memory) + 1023) / 1024 * 1024) {}
  __device__ uint32_t rows(int slot) const { return base + slot * Tile::kRowsBytes; }
  __device__ uint32_t raw(int slot) const { return rows(Tile::kRowSlots) + slot * Tile::kRawBytes; }
  __device__ uint32_t columns(int slot) const { return raw(Tile::kRawSlots) + slot * 2 * Tile::kPartBytes; }
  /// The copy engine has filled a rows tile and the raw columns of the same stage.
  __device__ uint32_t fetched(int slot) const { return columns(Tile::kTileSlots) + slot * 8; }
  /// Split columns, and with them their stage, are ready for the consumers.
  __device__ uint32_t full(int slot) const { return fetched(Tile::kRowSlots) + slot * 8; }
  /// The consumers are done with that stage.
  __device__ uint32_t empty(int slot) const { return full(Tile::kTileSlots) + slot * 8; }
};

/// The sum of one element by plain multiply-adds.
__device__ inline float plain_sum(const SplitGemmParams& p, int64_t batch, int64_t row, int64_t column) {
  const SplitGemmOperand &r = p.plan.rows, &c = p.plan.columns;
  const float* a = p.rows + batch * r.batch + row * (r.deep ? r.pitch : 1);
  const float* b = p.columns + batch * c.batch + column * (c.deep ? c.pitch : 1);
  const int64_t a_step = r.deep ? 1 : r.pitch, b_step = c.deep ? 1 : c.pitch;
  float sum = 0;
  for (int64_t i = 0; i < p.plan.depth; ++i) sum = fmaf(a[i * a_step], b[i * b_step], sum);
  return sum;
}

}  // namespace split_gemm
}  // namespace halo::cuda
