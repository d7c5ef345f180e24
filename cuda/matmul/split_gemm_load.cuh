// The loading warpgroup of the float32-accurate matrix product (split_gemm.cuh).
#pragma once

#include "split_gemm_tile.cuh"

namespace halo::cuda {
namespace split_gemm {

/// Fetches tiles and splits the columns operand.
template <class Tile>
struct Producer {
  const SplitGemmParams& p;
  const Shared<Tile>& shared;
  const int thread;
  int64_t next_tile;  ///< of the next stage to fetch
  Work next;
  int next_stage = 0;
  Slot<Tile::kRowSlots> next_rows;
  Slot<Tile::kRawSlots> next_raw;

  __device__ __forceinline__ Producer(const SplitGemmParams& params, const Shared<Tile>& s, int t)
      : p(params),
        shared(s),
        thread(t),
        next_tile(blockIdx.x),
        next(params.plan, next_tile, Tile::kRows, Tile::kColumns) {}

  /// Starts the copies of the next stage, if there is one.
  __device__ __forceinline__ void fetch() {
    if (next_tile >= p.plan.tiles) return;
    if (thread == 0) {
      const uint32_t barrier = shared.fetched(next_rows.index);
      barrier_expect(barrier, Tile::kRowsBytes + Tile::kRawBytes);
      const int depth = static_cast<int>((next.first_stage + next_stage) * kSplitGemmDepth);
      copy(shared.rows(next_rows.index), &p.rows_map, p.plan.rows, depth, next.row, next.batch, barrier);
      copy(shared.raw(next_raw.index), &p.columns_map, p.plan.columns, depth, next.column, next.batch, barrier);
    }
    next_rows.next();
    next_raw.next();
    if (++next_stage < next.stages) return;
    next_stage = 0;
    next_tile += gridDim.x;
    next = Work(p.plan, next_tile, Tile::kRows, Tile::kColumns);
  }
  static __device__ __forceinline__ void copy(uint32_t to, const CUtensorMap* map, const SplitGemmOperand& operand,
                                              int depth, int64_t first, int64_t batch, uint32_t barrier) {
    const int at = static_cast<int>(first), matrix = operand.batch == 0 ? 0 : static_cast<int>(batch);
    copy_box(to, map, operand.deep ? depth : at, operand.deep ? at : depth, matrix, barrier);
  }

  /// Raw columns to high and low core matrices: a thread takes one column, four depths at a time. Several loads are
  /// under way at once, since it is their latency that takes the time.
  template <bool ColumnsDeep>
  __device__ __forceinline__ void split(uint32_t raw, uint32_t to) const {
    constexpr int kTogether = 128 / Tile::kColumns, kQuads = kSplitGemmDepth / 4 / kTogether, kBatch = 4;
    const int column = thread % Tile::kColumns, own = thread / Tile::kColumns;
#pragma unroll
    for (int first = 0; first < kQuads; first += kBatch) {
      float value[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int quad = own + (first + i) * kTogether;
        if constexpr (ColumnsDeep) {
          const float4 v = load_shared_vector(raw + column * 128 + ((quad ^ column % 8) * 16));
          value[i][0] = v.x, value[i][1] = v.y, value[i][2] = v.z, value[i][3] = v.w;
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) value[i][j] = load_shared(raw + ((quad * 4 + j) * Tile::kColumns + column) * 4);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        Tf32Pair pair[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) pair[j] = split_tf32_unguarded(value[i][j]);
        const uint32_t at = to + ((own + (first + i) * kTogether) * Tile::kColumns + column) * 16;
        store_shared(at, pair[0].high, pair[1].high, pair[2].high, pair[3].high);
        store_shared(at + Tile::kPartBytes, pair[0].low, pair[1].low, pair[2].low, pair[3].low);
      }
    }
  }

  __device__ __forceinline__ void produce() {
    Slot<Tile::kTileSlots> tile;
    Slot<Tile::kRowSlots> rows;
    Slot<Tile::kRawSlots> raw;
    tile.parity = 1;  // a fresh barrier counts as emptied
    for (int i = 0; i < Tile::kRawSlots - 1; ++i) fetch();
    for (int64_t t = blockIdx.x; t < p.plan.tiles; t += gridDim.x) {
      const int stages = Work(p.plan, t, Tile::kRows, Tile::kColumns).stages;
      for (int stage = 0; stage < stages; ++stage) {
        // The stage that is done with `tile` also freed the rows that the next fetch fills; the barrier below freed its
        // raw columns.
        barrier_wait(shared.empty(tile.index), tile.parity);
        fetch();
        barrier_wait(shared.fetched(rows.index), rows.parity);
        if (p.plan.columns.deep) {
          split<true>(shared.raw(raw.index), shared.columns(tile.index));
        } else {
          split<false>(shared.raw(raw.index), shared.columns(tile.index));
        }
        fence_async_proxy();
        barrier_arrive(shared.full(tile.index));
        barrier_sync(7, 128);
        tile.next();
        rows.next();
        raw.next();
      }
    }
  }
};

}  // namespace split_gemm
}  // namespace halo::cuda
