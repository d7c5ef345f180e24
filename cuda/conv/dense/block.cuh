// What the warps of the dense engine's kernel (kernel.cuh) share: its shapes, the layout of shared memory, work
// items.
#pragma once

#include "../../device/activation.cuh"
#include "../../device/async_copy.cuh"
#include "../../device/grid_order.cuh"
#include "../../device/mbarrier.cuh"
#include "../../device/shared_words.cuh"
#include "../../device/tf32_split.cuh"
#include "../../device/wgmma.cuh"
#include "../plain_sum.cuh"
#include "depth.cuh"
#include <cuda.h>

namespace halo::cuda::conv {

/// T: storage of operands and results.
template <int Columns, int RowTiles, int Warpgroups, bool Storers, int Products, int WindowTaps = 0, class T = float>
struct DenseTraits {
  using Type = T;
  static constexpr int kElement = sizeof(T);
  static constexpr int kColumns = Columns;        // N of a column tile
  static constexpr int kRowTiles = RowTiles;      // m64 tiles a warpgroup
  static constexpr int kWarpgroups = Warpgroups;  // that multiply
  static constexpr int kProducts = Products;      // 3: float32-accurate, 1: TF32
  static constexpr int kWindowTaps = WindowTaps;  // of DensePlan::windows, or 0
  static constexpr int kRows = Warpgroups * RowTiles * 64;
  static constexpr int kMultipliers = Warpgroups * 128;  // threads; then a warpgroup that copies, and one that stores
  static constexpr bool kStorers = Storers;              // or the multipliers store, one item after the other
  static constexpr int kThreads = kMultipliers + 128 + (Storers ? 128 : 0);
  static constexpr int kFillThreads = 96;
  static constexpr bool kFlat = dense_may_be_flat(Products == 3, Storers, Columns, RowTiles);
  static constexpr bool kEarly = dense_loads_early(Products == 3, Storers, Columns, RowTiles);
  static constexpr bool kPairs = dense_may_pair(Storers, Columns);
  static constexpr int kTurnWords = dense_turn_words(RowTiles);  // a warp's share of the epilogue's buffer
  static constexpr int kResultPitch = dense_result_pitch(kRows);
  static constexpr int kResultWords = Storers ? Columns * kResultPitch : Warpgroups * 4 * kTurnWords;
  static constexpr int kParts = Products == 3 ? 2 : 1;  // high and low, or one
  static constexpr int kStepFloats = Columns * 8 * kParts;
  static constexpr int kStageFloats = kStepsPerStage * kStepFloats;
  // The block's registers are those of its launch, 65536 / kThreads a thread rounded down to 8; setmaxnreg deals them
  // out.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  // What is spilled comes from the second-level cache, since shared memory leaves the first nothing: with these shares
  // of registers no loop that multiplies spills, and in float32 none that stores.
  static constexpr bool kTight = WindowTaps > 0 || (Storers && Products == 3 && Columns >= 128);
  // Single half numbers come through the copying warps' registers.
  static constexpr int kProducerRegisters = kTight ? 24 : sizeof(T) == 2 ? 72 : 32;
  static constexpr int kStorerRegisters = !kTight ? 64 : WindowTaps > 0 ? 56 : 88;
  static constexpr int kHelperRegisters = kProducerRegisters + (Storers ? kStorerRegisters : 0);
  static constexpr int kConsumerRegisters = (kThreads / 128 * kLaunchRegisters - kHelperRegisters) / Warpgroups / 8 * 8;
  static_assert(Products == 1 || (Products == 3 && sizeof(T) == 4));
  static_assert(Columns % 8 == 0 && Columns <= 256);
  static_assert(kHelperRegisters + Warpgroups * kConsumerRegisters <= kThreads / 128 * kLaunchRegisters);
  static_assert((kStageFloats * 4) % 128 == 0, "bulk copies of whole core matrices");
};

/// Shared memory, in this order; byte offsets from an aligned base.
struct DenseShared {
  uint32_t weights, halo, columns, rows, turn, fill, table, barriers;
  __device__ DenseShared(const DenseParams& p, int stage_floats, int columns_held, int row_count, int turn_words,
                         uint32_t base, int element) {
    weights = base;
    halo = weights + static_cast<uint32_t>(p.weight_stages * stage_floats) * 4;
    columns = halo + static_cast<uint32_t>(p.halo_stages * p.halo_stage_words * element);
    rows = columns + static_cast<uint32_t>(columns_held) * 16;
    turn = rows + static_cast<uint32_t>(row_count) * 16;
    fill = turn + static_cast<uint32_t>(turn_words) * 4;
    table = fill + static_cast<uint32_t>((p.halo_words + 3) & ~3) * 4;
    barriers = table + static_cast<uint32_t>(p.table_steps) * 32;
  }
  __device__ uint32_t weights_full(int stage) const { return barriers + static_cast<uint32_t>(stage) * 16; }
  __device__ uint32_t weights_empty(int stage) const { return weights_full(stage) + 8; }
  __device__ uint32_t halo_full(const DenseParams& p, int stage) const { return weights_full(p.weight_stages + stage); }
  __device__ uint32_t halo_empty(const DenseParams& p, int stage) const { return halo_full(p, stage) + 8; }
  __device__ uint32_t results_full(const DenseParams& p) const { return halo_full(p, p.halo_stages); }
  __device__ uint32_t results_empty(const DenseParams& p) const { return results_full(p) + 8; }
};

/// Position in a ring of stages.
struct RingCursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// One work item: a tile of rows, a column tile, a phase, a share of the depth.
struct DenseItem {
  uint32_t column_tile, phase, split, group, n;
  int q0[3];
  uint32_t before;  ///< of a flat tile: positions of its first line that come before it
  int first_chunk, end_chunk;
  bool exists;  ///< a pair's second tile may not

  /// `rank` of the block in its pair; `pair` is p.pair, or 0 where the kernel has none.
  __host__ __device__ DenseItem(const DenseParams& p, uint32_t index, uint32_t rank, int pair) {
    uint32_t w, h, d;
    index = p.column_tiles.divide(index, column_tile);
    index = p.phases.divide(index, phase);
    index = p.splits.divide(index, split) << pair | rank;
    exists = pair == 0 || index < p.tile_count;
    if (!exists) index = p.tile_count - 1;
    index = p.tiles_w.divide(index, w);
    index = p.tiles_h.divide(index, h);
    index = p.tiles_d.divide(index, d);
    n = p.groups.divide(index, group);
    q0[0] = static_cast<int>(d) * p.tile[0];
    q0[1] = static_cast<int>(h) * p.tile[1];
    q0[2] = static_cast<int>(w) * p.tile[2];
    before = 0;
    if (p.flat) {
      q0[1] = static_cast<int>(p.by_line.divide(static_cast<uint32_t>(q0[2]), before));
      q0[2] = 0;
    }
    first_chunk = static_cast<int>(split) * p.chunks_per_split;
    end_chunk = min(p.chunks, first_chunk + p.chunks_per_split);
  }
  __host__ __device__ int stages(const DenseParams& p) const {
    return ((end_chunk - first_chunk) * p.phase[phase].steps + kStepsPerStage - 1) / kStepsPerStage;
  }
  /// Word of the item's first prepared weight.
  __host__ __device__ int64_t first_weight(const DenseParams& p, int stage_floats) const {
    const DensePhase& mine = p.phase[phase];
    const int full = (p.chunks_per_split * mine.steps + kStepsPerStage - 1) / kStepsPerStage;
    const int64_t block = (int64_t{group} * p.column_tiles.divisor + column_tile) * p.splits.divisor + split;
    return mine.weight_offset + block * full * stage_floats;
  }
};

/// The items of a block, or of a pair of blocks, in the order in which halos and weights travel.
template <class Traits>
struct DenseWalk {
  uint32_t work, rank;
  static __device__ int pair(const DenseParams& p) { return Traits::kPairs ? p.pair : 0; }
  __device__ explicit DenseWalk(const DenseParams& p)
      : work(blockIdx.x >> pair(p)), rank(blockIdx.x & static_cast<uint32_t>(pair(p))) {}
  __device__ bool more(const DenseParams& p) const { return work < static_cast<uint32_t>(p.work_items); }
  __device__ void next(const DenseParams& p) { work += gridDim.x >> pair(p); }
  __device__ DenseItem item(const DenseParams& p) const { return {p, work, rank, pair(p)}; }
};

using device::load_shared;

__device__ __forceinline__ uint2 load_shared_pair(uint32_t address) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address));
  return value;
}

/// `volatile`: the assembler must load again rather than keep what it has loaded before, for which there is no
/// register.
__device__ __forceinline__ uint4 load_shared_quad(uint32_t address) {
  uint4 value;
  asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ void store_shared_quad(uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

/// Words from the start of a halo stage to channel `c` of it.
__host__ __device__ __forceinline__ int plane_word(const DenseParams& p, int c) {
  return c * p.plane_pitch + ((c >> 1) & 1) * p.plane_skew;
}

/// Byte offset in the halo, whose words have `element` bytes, of depth element `k` (0..7) of step `step` of a phase.
__host__ __device__ inline uint32_t depth_offset(const DenseParams& p, const DensePhase& phase, int step, int k,
                                                 int element = sizeof(float)) {
  const int taps = phase.window[0] * phase.window[1] * phase.window[2];
  const DenseDepth at = dense_depth(p, phase, step, k);
  const int tap = min(at.tap, taps - 1), channel = min(at.channel, p.chunk_channels - 1);  // beyond: zero weights
  const int tw = tap % phase.window[2], th = tap / phase.window[2] % phase.window[1];
  const int td = tap / phase.window[2] / phase.window[1];
  const int word = (td * p.tap_step[0] * p.halo_height + th * p.tap_step[1]) * p.halo_pitch + tw * p.tap_step[2];
  return static_cast<uint32_t>((plane_word(p, channel) + word) * element);
}

/// Offset table: table[step][c] = byte offsets of depth c and c + 4.
__device__ inline void build_table(const DenseParams& p, uint32_t table, int element) {
  for (int i = static_cast<int>(threadIdx.x); i < p.table_steps * 8; i += static_cast<int>(blockDim.x)) {
    const int step = i / 8, lane = i % 8 / 2, k = lane + i % 2 * 4;
    int phase = 0;
    while (phase + 1 < static_cast<int>(p.phases.divisor) && step >= p.phase[phase + 1].table) ++phase;
    store_shared(table + static_cast<uint32_t>(i) * 4,
                 depth_offset(p, p.phase[phase], step - p.phase[phase].table, k, element));
  }
}

/// Source position of an item's first halo element along `axis`.
__host__ __device__ __forceinline__ int source_at(const DenseParams& p, const DenseItem& item, int axis) {
  return item.q0[axis] * p.in_step[axis] * p.fill_step[axis] + p.phase[item.phase].off_min[axis];
}

/// Words by which an item's halo is moved in its stage, so that shared and global addresses agree modulo one copy.
__host__ __device__ __forceinline__ uint32_t halo_shift(const DenseParams& p, const DenseItem& item) {
  const int flat =
      (source_at(p, item, 0) * p.source_extent[1] + source_at(p, item, 1)) * p.source_extent[2] + source_at(p, item, 2);
  return static_cast<uint32_t>(flat) & static_cast<uint32_t>(p.fill_words - 1);
}

}  // namespace halo::cuda::conv
