// What the two halves of the dense weight gradient's kernel share: parameters, a block's share of the work, the layout
// of shared memory, conversion to TF32.
#pragma once

#include "../../device/async_copy.cuh"
#include "../../device/mbarrier.cuh"
#include "../../device/number.cuh"
#include "../../device/shared_words.cuh"
#include "../../device/tf32_split.cuh"
#include "../../device/wgmma.cuh"
#include "plan.h"
#include <cuda.h>

namespace halo::cuda::conv {

struct DenseWeightParams {
  CUtensorMap gathered_map;
  CUtensorMap streamed_map;
  const void* gathered;
  const void* streamed;
  int gathered_shift, streamed_shift;  ///< elements between a map's base and the tensor's first element
  double* partial;                     ///< [split][group][column][row]
  DenseWeightGeometry geometry;
};

/// N columns a block; Split: three products, else one; T: storage of the operands. All three warpgroups' register
/// budgets follow from them.
template <int N, bool Split, class T>
struct DenseWeightTile {
  using Type = T;
  static constexpr int kElement = sizeof(T), kGranule = 16 / kElement;
  static constexpr int kColumns = N;
  static constexpr bool kSplit = Split;
  /// With partial sums beside the sums, only half of 128 columns at a time fit the registers.
  static constexpr int kWgmmaColumns = Split && N > 96 ? N / 2 : N;
  static constexpr int kHalves = N / kWgmmaColumns;
  static constexpr bool kFolded = N > kMostColumns;  ///< plain stages of whole groups of 4 steps alone
  static constexpr int kTiles = dense_weight_row_tiles(N);
  static constexpr int kThreads = (kConsumers + 1) * 128;
  /// Registers a thread: entry has 128 (65,536 / 512).
  static constexpr int kConsumerRegisters = 144;
  static constexpr int kProducerRegisters = 512 - kConsumers * kConsumerRegisters;
  static_assert(N % 16 == 0 && kWgmmaColumns * kHalves == N && N <= (Split ? kMostColumns : kMostFoldedColumns));
  static_assert(kConsumerRegisters % 8 == 0 && kProducerRegisters >= 40);
};

namespace dense_weight {

using namespace halo::cuda::device;

/// One stage of the sum: a depth, and where its rows and columns of positions begin. The next stage is the one below.
struct Cursor {
  int batch, depth, row_block, column_block;

  __device__ Cursor(const DenseWeightGeometry& g, int64_t stage) {
    row_block = static_cast<int>(stage % g.row_blocks);
    stage /= g.row_blocks;
    column_block = static_cast<int>(stage % g.column_blocks);
    stage /= g.column_blocks;
    depth = static_cast<int>(stage % g.positions[0]);
    batch = static_cast<int>(stage / g.positions[0]);
  }
  __device__ void next(const DenseWeightGeometry& g) {
    if (++row_block < g.row_blocks) return;
    row_block = 0;
    if (++column_block < g.column_blocks) return;
    column_block = 0;
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
///   z     byte of the stage's first line in the ring of gathered lines, a multiple of 16, and where it begins in its
///         box (less than 16 bytes, in elements)
///   w     bit 0: whether some position does not exist; above: bytes from a line's beginning to its first position
constexpr int kNoteBytes = 16;

/// A position in a ring of buffers: its index and the parity of its round.
struct Slot {
  int index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next(int size) {
    if (++index == size) index = 0, parity ^= 1;
  }
};

/// Shared memory: the rings, barriers, notes.
struct Shared {
  uint32_t high_base, low_base, gathered_base, raw_base, barriers;
  int part_bytes, raw_bytes;

  __device__ Shared(const DenseWeightGeometry& g, const void* memory)
      : part_bytes(g.part_bytes), raw_bytes(g.raw_bytes) {
    high_base = shared_address(memory);
    low_base = high_base + g.high_slots * g.part_bytes;
    gathered_base = low_base + g.low_slots * g.part_bytes;
    raw_base = gathered_base + g.gathered_bytes;
    barriers = raw_base + g.raw_slots * g.raw_bytes;
  }
  __device__ uint32_t high(int slot) const { return high_base + slot * part_bytes; }
  __device__ uint32_t low(int slot) const { return low_base + slot * part_bytes; }
  __device__ uint32_t gathered() const { return gathered_base; }
  __device__ uint32_t raw(int slot) const { return raw_base + slot * raw_bytes; }
  /// The copy engine has filled the gathered lines that are new to a stage; its streamed boxes.
  __device__ uint32_t lines_ready(int slot) const { return barriers + slot * 8; }
  __device__ uint32_t boxes_ready(int slot) const { return barriers + (kMaxStages + slot) * 8; }
  /// Raw streamed boxes have been converted.
  __device__ uint32_t raw_empty(int slot) const { return barriers + (2 * kMaxStages + slot) * 8; }
  /// A stage is ready for the consumers.
  __device__ uint32_t full(int slot) const { return barriers + (3 * kMaxStages + slot) * 8; }
  /// The consumers are done with that stage. As many slots as the fetchers are ahead, not as there are tiles: a fetcher
  /// that looks late must not find the barrier a round further, whose parity is that of the round it waits for.
  __device__ uint32_t empty(int slot) const { return barriers + (4 * kMaxStages + slot) * 8; }
  __device__ uint32_t note(int slot) const { return barriers + 5 * kMaxStages * 8 + slot * kNoteBytes; }
};

/// Four neighbours that lie aligned.
template <class T>
__device__ __forceinline__ float4 load_elements(uint32_t address) {
  if constexpr (sizeof(T) == 4) {
    return load_shared_vector(address);
  } else {
    const int2 words = load_shared_pair(address);
    float value[4];
    unpack_word<T>(static_cast<uint32_t>(words.x), value);
    unpack_word<T>(static_cast<uint32_t>(words.y), value + 2);
    return {value[0], value[1], value[2], value[3]};
  }
}
/// An element's bits.
template <class T>
__device__ __forceinline__ void store_element(uint32_t address, uint32_t bits) {
  if constexpr (sizeof(T) == 4) {
    store_shared(address, bits);
  } else {
    store_shared_half(address, bits);
  }
}

/// One operand of the tensor core, which ignores bits below TF32's by itself, as high and, if Split, low part. Of an
/// infinity, a NaN or a number next to the largest, the results are not finite; they are then summed again otherwise.
template <bool Split>
__device__ __forceinline__ Tf32Pair to_tf32(float value) {
  if constexpr (Split) return split_tf32_unguarded(value);
  return {round_tf32_by_cut(value), 0};
}

}  // namespace dense_weight
}  // namespace halo::cuda::conv
