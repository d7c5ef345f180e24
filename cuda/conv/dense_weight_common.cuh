// What the two halves of the dense weight gradient's kernel share: parameters, a block's share of the work, the layout
// of shared memory, conversion to TF32.
#pragma once

#include "../device/async_copy.cuh"
#include "../device/mbarrier.cuh"
#include "../device/tf32_split.cuh"
#include "../device/wgmma.cuh"
#include "dense_weight_plan.h"
#include <cuda.h>

namespace halo::cuda::conv {

struct DenseWeightParams {
  CUtensorMap gathered_map;
  CUtensorMap streamed_map;
  const float* gathered;
  const float* streamed;
  int gathered_shift, streamed_shift;  ///< floats between a map's base and the tensor's first element
  double* partial;                     ///< [split][group][column][row]
  DenseWeightGeometry geometry;
};

/// N columns a block; Split: three products, else one. All three warpgroups' register budgets follow from them.
template <int N, bool Split>
struct DenseWeightTile {
  static constexpr int kColumns = N;
  static constexpr bool kSplit = Split;
  static constexpr int kWgmmaColumns = N > 96 ? N / 2 : N;  ///< half of 128: its partial sums fit beside the sums
  static constexpr int kHalves = N / kWgmmaColumns;
  static constexpr int kTiles = dense_weight_row_tiles(N);
  static constexpr int kThreads = (kConsumers + 1) * 128;
  /// Registers a thread: entry has 128 (65,536 / 512).
  static constexpr int kConsumerRegisters = Split && N >= 64 ? 152 : 144;
  static constexpr int kProducerRegisters = 512 - kConsumers * kConsumerRegisters;
  static_assert(N % 16 == 0 && kWgmmaColumns * kHalves == N && kWgmmaColumns <= 96 && N <= kMostColumns);
  static_assert(kConsumerRegisters % 8 == 0 && kProducerRegisters >= 40);
};

namespace dense_weight {

using namespace halo::cuda::device;

/// One stage of the sum: a depth, and where its rows and columns of positions begin.
struct Cursor {
  int batch, depth, row_block, column_block;

  __device__ Cursor(const DenseWeightGeometry& g, int64_t stage) {
    column_block = static_cast<int>(stage % g.column_blocks);
    stage /= g.column_blocks;
    row_block = static_cast<int>(stage % g.row_blocks);
    stage /= g.row_blocks;
    depth = static_cast<int>(stage % g.positions[0]);
    batch = static_cast<int>(stage / g.positions[0]);
  }
  __device__ void next(const DenseWeightGeometry& g) {
    if (++column_block < g.column_blocks) return;
    column_block = 0;
    if (++row_block < g.row_blocks) return;
    row_block = 0;
    if (++depth < g.positions[0]) return;
    depth = 0;
    ++batch;
  }
};

/// What this block computes.
struct Block {
  int first_tile, tiles;  ///< 64-row tiles of the group
  int first_column, columns;
  int first_channel, channels;  ///< of the gathered operand that its rows need
  int group, split;
  int64_t first_stage;
  int stages;

  __device__ Block(const DenseWeightGeometry& g, int tile_columns) {
    uint32_t index = blockIdx.x;
    const int m_block = static_cast<int>(index % g.m_blocks);
    index /= g.m_blocks;
    first_column = static_cast<int>(index % g.n_blocks) * tile_columns;
    index /= g.n_blocks;
    group = static_cast<int>(index % g.groups);
    split = static_cast<int>(index / g.groups);
    first_tile = g.row_tiles * m_block / g.m_blocks;
    tiles = g.row_tiles * (m_block + 1) / g.m_blocks - first_tile;
    columns = min(tile_columns, g.columns - first_column);
    first_channel = first_tile * kTileRows / g.taps;
    const int last_row = min((first_tile + tiles) * kTileRows, g.rows) - 1;
    channels = last_row / g.taps - first_channel + 1;
    first_stage = g.stages * split / g.splits;
    stages = static_cast<int>(g.stages * (split + 1) / g.splits - first_stage);
  }
};

/// What consumers need to know of a stage beside its data: four words.
///   x, y  bit 4u + c: whether positions 8u + c, and 8u + c + 4, exist (c < 4)
///   z     where the stage's first line begins in its box
///   w     not zero where some position does not exist
constexpr int kNoteBytes = 16;

/// A position in a ring of buffers: its index and the parity of its round.
struct Slot {
  int index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next(int size) {
    if (++index == size) index = 0, parity ^= 1;
  }
};

/// Shared memory: the three rings, the column table, barriers, masks.
struct Shared {
  uint32_t streamed_base, gathered_base, raw_base, column_table, barriers;
  int streamed_bytes, gathered_bytes, raw_bytes;

  __device__ Shared(const DenseWeightGeometry& g, const void* memory)
      : streamed_bytes(g.streamed_bytes), gathered_bytes(g.gathered_bytes), raw_bytes(g.raw_bytes) {
    streamed_base = shared_address(memory);
    gathered_base = streamed_base + g.tiles * g.streamed_bytes;
    raw_base = gathered_base + (g.tiles + g.ahead) * g.gathered_bytes;
    column_table = raw_base + (1 + g.ahead) * g.raw_bytes;
    barriers = column_table + kMostColumns * kColumnEntryBytes;
  }
  __device__ uint32_t streamed(int slot) const { return streamed_base + slot * streamed_bytes; }
  __device__ uint32_t gathered(int slot) const { return gathered_base + slot * gathered_bytes; }
  __device__ uint32_t raw(int slot) const { return raw_base + slot * raw_bytes; }
  /// The copy engine has filled a gathered tile and the raw box of the same stage.
  __device__ uint32_t fetched(int slot) const { return barriers + slot * 8; }
  /// A streamed tile, and with it its stage, is ready for the consumers.
  __device__ uint32_t full(int slot) const { return barriers + (kMaxStages + slot) * 8; }
  /// The consumers are done with that stage.
  __device__ uint32_t empty(int slot) const { return barriers + (2 * kMaxStages + slot) * 8; }
  __device__ uint32_t note(int slot) const { return barriers + 3 * kMaxStages * 8 + slot * kNoteBytes; }
};

__device__ __forceinline__ float load_shared(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ int2 load_shared_pair(uint32_t address) {
  int2 value;
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address));
  return value;
}
__device__ __forceinline__ float4 load_shared_vector(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address));
  return value;
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

/// True where every magnitude is well inside float32's range, so that rounding up cannot make an infinity. False for
/// infinities and NaN.
template <int Count>
__device__ __forceinline__ bool ordinary(const float (&value)[Count]) {
  float magnitude[2] = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < Count; ++i) magnitude[i % 2] += fabsf(value[i]);
  return magnitude[0] + magnitude[1] < kTf32Max;
}

/// One operand of the tensor core as high and, if Split, low part. `Cheap` is right for ordinary() numbers: the tensor
/// core ignores bits below TF32's by itself.
template <bool Split, bool Cheap>
__device__ __forceinline__ Tf32Pair to_tf32(float value) {
  if constexpr (Split) return Cheap ? split_tf32_unguarded(value) : split_tf32(value);
  return {Cheap ? __float_as_uint(value) + kTf32HalfUlp : round_tf32_finite(value), 0};
}

/// Where each column lies in a line of the raw boxes (words), its folded tap, and (from bit 8) its flat index modulo 4.
__device__ __forceinline__ void fill_column_table(const DenseWeightGeometry& g, const Block& block,
                                                  const Shared& shared, int tile_columns) {
  const int channels = block.columns / g.fold_taps;
  for (int i = threadIdx.x; i < tile_columns; i += blockDim.x) {
    const int column = i < block.columns ? i : 0;  // the rest repeats the first and is never stored
    const int tap = column / channels;
    const int word = tap * g.streamed.period * g.streamed.box_pitch + g.streamed.channel_word(column - tap * channels);
    store_shared(shared.column_table + i * kColumnEntryBytes, word);
    const int row = g.streamed_extent[2], plane = row * g.streamed_extent[1];
    const int flat = (column - tap * channels) * static_cast<int>(g.streamed.plane & 3) -
                     tap * g.fold_dilation * (g.fold_axis == 0 ? plane : row);
    store_shared(shared.column_table + i * kColumnEntryBytes + 4, tap | (flat & 3) << 8);
  }
}

}  // namespace dense_weight
}  // namespace halo::cuda::conv
