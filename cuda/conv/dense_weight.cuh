// Dense convolution weight gradient on Hopper tensor cores. The geometry is in dense_weight_plan.h; here it is
// executed.
//
// A block computes up to 384 rows (input channel, tap) by N columns (output channels) of the gradient over one range of
// positions (a split). One warpgroup loads, three multiply:
//   gathered operand  (rows)    a float32 halo tile per stage in shared memory, filled by cp.async with zeros outside
//   the
//                               tensor. Consumers read wgmma A fragments out of it at any tap offset, straight into
//                               registers, and split them there: no im2col is ever written.
//   streamed operand  (columns) read once per block, split into high and low TF32 parts, stored as K-major core
//   matrices,
//                               since wgmma takes B only from shared memory.
// The tensor core cuts off the low bits of each of its additions, so its sums are moved to float32 registers every
// kPromoteSteps k8 steps, and those to float64 in the workspace every `flush_stages` stages: the error stays put at any
// length. A second kernel adds the splits in order. No atomics: the bits depend on the plan alone.
//
// Limits: float32 storage, both operands dense; extents below 2^30 (int32 coordinates), offsets 64-bit; one block's
// halo tile must fit in shared memory beside the streamed tile (plan_dense_weight answers `valid == false` otherwise,
// which happens for dilations of several thousand, and the dispatcher falls back).
#pragma once

#include <type_traits>

#include "../device/async_copy.cuh"
#include "../device/mbarrier.cuh"
#include "../device/tf32_split.cuh"
#include "../device/wgmma.cuh"
#include "../launch.h"
#include "dense_weight_launch.h"

namespace halo::cuda::conv {

struct DenseWeightParams {
  const float* gathered;
  const float* streamed;
  double* partial;  ///< [split][group][column][row]
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
  static constexpr int kPromoteSteps = 4;
  static constexpr int kThreads = (kConsumers + 1) * 128;
  static constexpr int kLowOffset = N / 8 * kColumnGroupPitch;  ///< bytes from the high to the low parts
  /// Registers a thread: entry has 128 (65,536 / 512).
  static constexpr int kConsumerRegisters = Split && N == 128 ? 152 : 144;
  static constexpr int kProducerRegisters = 512 - kConsumers * kConsumerRegisters;
  /// Values a producer thread has in flight.
  static constexpr int kLoads = Split ? 16 : 32;
  static_assert(N % 8 == 0 && kWgmmaColumns * kHalves == N && kWgmmaColumns <= 96);
  static_assert(kConsumerRegisters % 8 == 0 && kProducerRegisters % 8 == 0 && kProducerRegisters >= 40);
  static_assert(kTiles <= kTilesPerWarpgroup);
};

namespace dense_weight {

using namespace halo::cuda::device;

/// One stage of the sum: a depth, and where its rows and columns of positions begin.
struct Cursor {
  int batch, depth, row_block, column_block;

  __device__ Cursor(const DenseWeightGeometry& g, int64_t stage) {
    column_block = static_cast<int>(stage % g.column_blocks_w);
    stage /= g.column_blocks_w;
    row_block = static_cast<int>(stage % g.row_blocks);
    stage /= g.row_blocks;
    depth = static_cast<int>(stage % g.positions[0]);
    batch = static_cast<int>(stage / g.positions[0]);
  }
  __device__ void next(const DenseWeightGeometry& g) {
    if (++column_block < g.column_blocks_w) return;
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

/// Shared memory: pipeline x (streamed tile, gathered tile), then the tables that every stage uses, the full and empty
/// barriers, and each stage's masks.
struct Shared {
  uint32_t base, line_table, column_table, barriers;
  int stage_bytes, streamed_bytes, pipeline;

  __device__ Shared(const DenseWeightGeometry& g, const void* memory)
      : base(shared_address(memory)),
        stage_bytes(g.streamed_bytes + g.gathered_bytes),
        streamed_bytes(g.streamed_bytes),
        pipeline(g.pipeline) {
    line_table = base + pipeline * stage_bytes;
    column_table = line_table + g.gathered.channels * g.gathered.planes * g.gathered.lines * kLineEntryBytes;
    barriers = column_table + kMostColumns * kColumnEntryBytes;
  }
  __device__ uint32_t streamed(int slot) const { return base + slot * stage_bytes; }
  __device__ uint32_t gathered(int slot) const { return base + slot * stage_bytes + streamed_bytes; }
  __device__ uint32_t full(int slot) const { return barriers + slot * 8; }
  __device__ uint32_t empty(int slot) const { return barriers + (kMaxStages + slot) * 8; }
  __device__ uint32_t masks(int slot) const { return barriers + 2 * kMaxStages * 8 + slot * 16; }
};

__device__ __forceinline__ float load_shared(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ int load_shared_word(uint32_t address) {
  int value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ int2 load_shared_pair(uint32_t address) {
  int2 value;
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address));
  return value;
}
__device__ __forceinline__ int4 load_shared_quad(uint32_t address) {
  int4 value;
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
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

/// What is the same for every stage, once a block: where each line of the gathered tile comes from and goes to, and
/// where each column of the streamed tile comes from.
__device__ __forceinline__ void fill_tables(const DenseWeightGeometry& g, const Block& block, const Shared& shared,
                                            int tile_columns) {
  const auto& x = g.gathered;
  const int lines = block.channels * x.planes * x.lines;
  for (int i = threadIdx.x; i < lines; i += blockDim.x) {
    const int channel = i / (x.planes * x.lines), plane = i / x.lines % x.planes, line = i % x.lines;
    const int z = plane * x.step[0], y = line * x.step[1];
    const int64_t source = channel * x.channel + (static_cast<int64_t>(z) * x.extent[1] + y) * x.extent[2];
    const int to = (channel * x.channel_pitch + plane * x.plane_pitch + line * x.line_pitch) * 4;
    store_shared(shared.line_table + i * kLineEntryBytes, static_cast<uint32_t>(source), to, z, y);
  }
  const int channels = block.columns / g.fold_taps;
  const int64_t row = g.streamed.extent[2], plane = row * g.streamed.extent[1];
  for (int i = threadIdx.x; i < tile_columns; i += blockDim.x) {
    const int column = i < block.columns ? i : 0;  // the rest repeats the first and is never stored
    const int tap = column / channels;
    const int64_t shift = (g.fold_pad - tap * g.fold_dilation) * (g.fold_axis == 0 ? plane : row);
    const int64_t source = (column - tap * channels) * g.streamed.channel + (g.fold_axis < 0 ? 0 : shift);
    store_shared(shared.column_table + i * kColumnEntryBytes, static_cast<uint32_t>(source));
    store_shared(shared.column_table + i * kColumnEntryBytes + 4, tap);
  }
}

/// Fills the gathered tile: lines are dealt out to groups of `lanes` threads, which copy up to four pieces each at
/// once.
class GatheredLoader {
 public:
  __device__ __forceinline__ GatheredLoader(const DenseWeightParams& p, const Block& block, const Shared& shared,
                                            int thread)
      : p_(p), table_(shared.line_table) {
    const auto& g = p.geometry.gathered;
    lane_ = thread % g.lanes * g.vector;
    first_ = thread / g.lanes;
    lines_ = block.channels * g.planes * g.lines;
    source_ = p.gathered + block.group * g.group + block.first_channel * g.channel;
  }

  __device__ __forceinline__ void load(const Cursor& at, uint32_t tile) const {
    const auto& g = p_.geometry.gathered;
    const int pieces = g.lanes * g.vector;
    for (int first = 0; first < g.words; first += 4 * pieces) {
      const int count = (g.words - first + pieces - 1) / pieces;
      if (g.vector == 4) {
        count == 1   ? copy<1, 4>(at, tile, first)
        : count == 2 ? copy<2, 4>(at, tile, first)
                     : copy<4, 4>(at, tile, first);
      } else {
        count == 1   ? copy<1, 1>(at, tile, first)
        : count == 2 ? copy<2, 1>(at, tile, first)
        : count == 3 ? copy<3, 1>(at, tile, first)
                     : copy<4, 1>(at, tile, first);
      }
    }
  }

 private:
  template <int Count, int Vector>
  __device__ __forceinline__ void copy(const Cursor& at, uint32_t tile, int first_word) const {
    const auto& g = p_.geometry.gathered;
    const int depth = g.extent[0], height = g.extent[1], width = g.extent[2];
    const int z0 = at.depth * g.stride[0] - g.pad[0];
    const int y0 = at.row_block * p_.geometry.step_rows * g.stride[1] - g.pad[1];
    const int x0 = at.column_block * p_.geometry.row_steps * 8 * g.stride[2] - g.pad[2] - g.lead;
    const bool interior =
        z0 >= 0 && z0 + (g.planes - 1) * g.step[0] < depth && y0 >= 0 && y0 + (g.lines - 1) * g.step[1] < height;
    const int step = g.lanes * Vector;
    const int word = first_word + lane_;
    int bytes[Count];  // of each piece that lie inside the tensor; -1 where the line has ended
#pragma unroll
    for (int j = 0; j < Count; ++j) {
      const int w = word + j * step, x = x0 + w * g.step[2];
      bytes[j] = x >= 0 ? max(0, min(Vector, width - x)) * 4 : 0;
      if (w >= g.words) bytes[j] = -1;
    }
    const float* source =
        source_ + at.batch * g.batch + (static_cast<int64_t>(z0) * height + y0) * width + x0 + word * g.step[2];
    const uint32_t target = tile + word * 4;
#pragma unroll 2
    for (int line = first_; line < lines_; line += 128 / g.lanes) {
      const int4 entry = load_shared_quad(table_ + line * kLineEntryBytes);
      const bool inside = interior || (static_cast<unsigned>(z0 + entry.z) < static_cast<unsigned>(depth) &&
                                       static_cast<unsigned>(y0 + entry.w) < static_cast<unsigned>(height));
      const float* from = source + entry.x;
#pragma unroll
      for (int j = 0; j < Count; ++j) {
        const uint32_t to = target + entry.y + j * step * 4;
        if (bytes[j] < 0) continue;
        if constexpr (Vector == 4) {
          copy_async_16(to, from + j * step, inside ? bytes[j] : 0);
        } else {
          copy_async_4(to, from + j * step * g.step[2], inside && bytes[j] != 0);
        }
      }
    }
  }

  const DenseWeightParams& p_;
  uint32_t table_;
  int lane_, first_, lines_;
  const float* source_;
};

/// Reads, splits and stores the streamed tile. Words: a warp covers 32 positions of one column, so that reads coalesce
/// and the core matrix pitch spreads the stores over the banks. Vectors: a thread moves four aligned positions of a
/// column.
template <class Tile, bool Vector>
class StreamedLoader {
 public:
  static constexpr int kColumnStep = Vector ? 8 : 4;  ///< between the columns of one thread
  static constexpr int kColumnsEach = Tile::kColumns / kColumnStep;
  static constexpr int kPositions = Vector ? 1 : 2;
  static constexpr int kWords = Vector ? 4 : 2;  ///< a column
  static constexpr int kMostBatch = Tile::kLoads / kWords;
  static constexpr int kBatch = kColumnsEach % kMostBatch == 0              ? kMostBatch
                                : kColumnsEach % 12 == 0 && kMostBatch > 12 ? 12
                                : kColumnsEach % (kMostBatch / 2) == 0      ? kMostBatch / 2
                                                                            : kMostBatch / 4;
  static constexpr int kBatches = kColumnsEach / kBatch;
  static_assert(kBatch > 0 && kBatches * kBatch == kColumnsEach);

  __device__ __forceinline__ StreamedLoader(const DenseWeightParams& p, const Block& block, const Shared& shared,
                                            int thread)
      : p_(p) {
    const auto& g = p.geometry;
    const int column = Vector ? thread / 16 : thread / 32;
    table_ = shared.column_table + column * kColumnEntryBytes;
    source_ = p.streamed + block.group * g.streamed.group + block.first_column * g.streamed.channel;
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      const int k = Vector ? thread % 16 * 4 : thread % 32 + 32 * i;
      line_[i] = k / (8 * g.row_steps);
      word_[i] = k - line_[i] * 8 * g.row_steps;
    }
    target_ =
        column * 16 + (Vector ? thread % 16 * kCoreMatrixPitch : thread % 32 / 4 * kCoreMatrixPitch + thread % 4 * 4);
  }

  /// Call before load() of a stage.
  __device__ __forceinline__ void begin(const Cursor& at) {
    const auto& g = p_.geometry;
    const auto& y = g.streamed;
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      const int h = at.row_block * g.step_rows + line_[i], w = at.column_block * g.row_steps * 8 + word_[i];
      const bool exists = line_[i] < g.step_rows && h < g.positions[1] && w < y.extent[2];
      valid_[i] = 0;
      for (int tap = 0; tap < g.fold_taps; ++tap) {
        const int shift = g.fold_pad - tap * g.fold_dilation;
        const int z = at.depth + (g.fold_axis == 0 ? shift : 0), row = h + (g.fold_axis == 1 ? shift : 0);
        const bool inside = static_cast<unsigned>(z) < static_cast<unsigned>(y.extent[0]) &&
                            static_cast<unsigned>(row) < static_cast<unsigned>(y.extent[1]);
        valid_[i] |= static_cast<uint32_t>(exists && inside) << tap;
      }
      from_[i] = source_ + at.batch * y.batch + (static_cast<int64_t>(at.depth) * y.extent[1] + h) * y.extent[2] + w;
    }
  }

  __device__ __forceinline__ void load(int batch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int2 entry = load_shared_pair(table_ + (batch * kBatch + i) * kColumnStep * kColumnEntryBytes);
#pragma unroll
      for (int q = 0; q < kPositions; ++q) {
        const float* from = from_[q] + entry.x;
        const bool valid = (valid_[q] >> entry.y & 1) != 0;
        if constexpr (Vector) {
          const float4 v = valid ? __ldg(reinterpret_cast<const float4*>(from)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          value_[i * 4] = v.x;
          value_[i * 4 + 1] = v.y;
          value_[i * 4 + 2] = v.z;
          value_[i * 4 + 3] = v.w;
        } else {
          value_[i * 2 + q] = valid ? __ldg(from) : 0.0f;
        }
      }
    }
  }

  __device__ __forceinline__ void store(uint32_t tile, int batch) {
    const uint32_t to = tile + target_ + batch * kBatch * kColumnStep / 8 * kColumnGroupPitch;
    ordinary(value_) ? store_as<true>(to) : store_as<false>(to);
  }

 private:
  template <bool Cheap>
  __device__ __forceinline__ void store_as(uint32_t to) const {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      uint32_t high[kWords], low[kWords];
#pragma unroll
      for (int j = 0; j < kWords; ++j) {
        const Tf32Pair pair = to_tf32<Tile::kSplit, Cheap>(value_[i * kWords + j]);
        high[j] = pair.high;
        low[j] = pair.low;
      }
      const uint32_t at = to + i * kColumnStep / 8 * kColumnGroupPitch + i * kColumnStep % 8 * 16;
      if constexpr (Vector) {
        store_shared(at, high[0], high[1], high[2], high[3]);
        if constexpr (Tile::kSplit) store_shared(at + Tile::kLowOffset, low[0], low[1], low[2], low[3]);
      } else {
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          store_shared(at + q * 8 * kCoreMatrixPitch, high[q]);
          if constexpr (Tile::kSplit) store_shared(at + q * 8 * kCoreMatrixPitch + Tile::kLowOffset, low[q]);
        }
      }
    }
  }

  const DenseWeightParams& p_;
  uint32_t table_, target_;
  int line_[kPositions], word_[kPositions];
  uint32_t valid_[kPositions];  ///< bit t: inside the tensor for folded tap t
  const float* from_[kPositions];
  const float* source_;
  float value_[kBatch * kWords];
};

/// Bit 2u + h: whether position 8u + lane + 4h of a stage exists; bit 31: whether all positions of the stage do not.
__device__ __forceinline__ uint32_t position_mask(const DenseWeightGeometry& g, const Cursor& at, int lane) {
  const int columns = g.positions[2] - at.column_block * 8 * g.row_steps;
  const int lines = g.positions[1] - at.row_block * g.step_rows;
  if (columns >= 8 * g.row_steps && lines >= g.step_rows) return 0;
  uint32_t mask = 0x80000000u;
  for (int u = 0; u < g.steps; ++u) {
    const int line = u / g.row_steps, column = (u - line * g.row_steps) * 8 + lane;
    if (line < lines && column < columns) mask |= 1u << (2 * u);
    if (line < lines && column + 4 < columns) mask |= 2u << (2 * u);
  }
  return mask;
}

template <class Tile, bool Vector>
__device__ __forceinline__ void produce(const DenseWeightParams& p, const Block& block, const Shared& shared,
                                        int thread) {
  Cursor at(p.geometry, block.first_stage);
  const GatheredLoader gathered(p, block, shared, thread);
  StreamedLoader<Tile, Vector> streamed(p, block, shared, thread);
  int slot = 0;
  uint32_t parity = 1;  // a fresh barrier counts as emptied
  for (int stage = 0; stage < block.stages; ++stage) {
    barrier_wait(shared.empty(slot), parity);
    gathered.load(at, shared.gathered(slot));
    copy_async_arrive(shared.full(slot));
    streamed.begin(at);
#pragma unroll 1
    for (int batch = 0; batch < StreamedLoader<Tile, Vector>::kBatches; ++batch) {
      streamed.load(batch);
      streamed.store(shared.streamed(slot), batch);
    }
    if (thread < 4) store_shared(shared.masks(slot) + thread * 4, position_mask(p.geometry, at, thread));
    fence_async_proxy();
    barrier_arrive(shared.full(slot));
    at.next(p.geometry);
    if (++slot == shared.pipeline) slot = 0, parity ^= 1;
  }
}

/// A warpgroup's share of a block: up to kTiles tiles of 64 rows, all columns.
template <class Tile>
struct Consumer {
  static constexpr int kSums = Tile::kWgmmaColumns / 2;
  const DenseWeightParams& p;
  const Block& block;
  int warpgroup, thread;
  uint32_t row[Tile::kTiles][2];  ///< byte offsets in the gathered tile of this thread's two rows of each tile
  float sum[Tile::kTiles][Tile::kHalves][kSums];

  __device__ __forceinline__ Consumer(const DenseWeightParams& params, const Block& b, int wg, int t)
      : p(params), block(b), warpgroup(wg), thread(t) {
    const auto& g = p.geometry;
#pragma unroll
    for (int m = 0; m < Tile::kTiles; ++m) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int r = min(first_row(m) + 8 * h, g.rows - 1);  // rows beyond the last repeat it and are never stored
        const int channel = r / g.taps;
        int tap = r - channel * g.taps;
        const int tap_w = tap % g.row_taps[2];
        tap /= g.row_taps[2];
        const int words = (channel - block.first_channel) * g.gathered.channel_pitch +
                          tap / g.row_taps[1] * g.tap_offset[0] + tap % g.row_taps[1] * g.tap_offset[1] +
                          tap_w * g.tap_offset[2] + g.gathered.lead + thread % 4 * g.position_words;
        row[m][h] = active(m) ? words * 4 : 0;
      }
    }
    clear();
  }

  /// Tiles go round the warpgroups, so that a short block still uses all of them.
  __device__ __forceinline__ int tile(int m) const { return m * kConsumers + warpgroup; }
  __device__ __forceinline__ bool active(int m) const { return tile(m) < block.tiles; }
  __device__ __forceinline__ int first_row(int m) const {
    return (block.first_tile + tile(m)) * kTileRows + thread / 32 * 16 + thread % 32 / 4;
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& tile_sums : sum)
      for (auto& half : tile_sums)
        for (float& s : half) s = 0.0f;
  }

  /// A fragments of `Steps` k8 steps. The mask clears positions beyond the end of a line, where the streamed operand is
  /// zero but the gathered one may hold an infinity of other positions.
  template <int Steps>
  __device__ __forceinline__ void load(float (&value)[Steps * 4], int m, uint32_t gathered, int first,
                                       uint32_t mask) const {
    const auto& g = p.geometry;
#pragma unroll
    for (int u = 0; u < Steps; ++u) {
      const uint32_t at = gathered + g.step_offset[first + u] * 4;
      const uint32_t half = g.position_words * 16;
      value[u * 4] = load_shared(at + row[m][0]);
      value[u * 4 + 1] = load_shared(at + row[m][1]);
      value[u * 4 + 2] = load_shared(at + half + row[m][0]);
      value[u * 4 + 3] = load_shared(at + half + row[m][1]);
    }
    if (mask == 0) return;
    const uint32_t keep = mask >> (2 * first);
#pragma unroll
    for (int i = 0; i < Steps * 4; ++i) value[i] = keep >> (i / 2) & 1 ? value[i] : 0.0f;
  }

  /// B of k8 step `step`, half `h` of the columns.
  static __device__ __forceinline__ uint64_t descriptor(uint32_t streamed, int step, int h) {
    constexpr uint64_t kLeading = uint64_t{kCoreMatrixPitch >> 4} << 16;
    constexpr uint64_t kStride = uint64_t{kColumnGroupPitch >> 4} << 32;
    const uint32_t address = streamed + step * 2 * kCoreMatrixPitch + h * (Tile::kWgmmaColumns / 8) * kColumnGroupPitch;
    return static_cast<uint64_t>(address >> 4) | kLeading | kStride;
  }

  template <int Steps, bool Split>
  static __device__ __forceinline__ void split(const float (&value)[Steps * 4], uint32_t (&high)[Steps * 4],
                                               uint32_t (&low)[Steps * 4]) {
    const auto convert = [&]<bool Cheap>(std::bool_constant<Cheap>) {
#pragma unroll
      for (int i = 0; i < Steps * 4; ++i) {
        const Tf32Pair pair = to_tf32<Split, Cheap>(value[i]);
        high[i] = pair.high;
        low[i] = pair.low;
      }
    };
    ordinary(value) ? convert(std::true_type{}) : convert(std::false_type{});
  }

  template <int Count>
  static __device__ __forceinline__ const uint32_t (&fragment(const uint32_t (&a)[Count], int step))[4] {
    return *reinterpret_cast<const uint32_t(*)[4]>(&a[step * 4]);
  }

  /// Adds k8 steps [first, first + Steps) of a stage to the sums.
  template <int Steps>
  __device__ __forceinline__ void multiply(uint32_t streamed, uint32_t gathered, int first, uint32_t mask) {
#pragma unroll
    for (int m = 0; m < Tile::kTiles; ++m) {
      if (!active(m)) continue;
      float value[Steps * 4];
      load<Steps>(value, m, gathered, first, mask);
      if constexpr (Tile::kSplit) {
        multiply_split<Steps>(value, m, streamed, first);
      } else {
        multiply_once<Steps>(value, m, streamed, first);
      }
    }
  }

  template <int Steps>
  __device__ __forceinline__ void multiply_split(const float (&value)[Steps * 4], int m, uint32_t streamed, int first) {
    uint32_t high[Steps * 4], low[Steps * 4];
    split<Steps, true>(value, high, low);
#pragma unroll
    for (int h = 0; h < Tile::kHalves; ++h) {
      float part[kSums];
      wgmma_fence();
#pragma unroll
      for (int u = 0; u < Steps; ++u) {
        const uint64_t b = descriptor(streamed, first + u, h);
        wgmma_tf32(part, fragment(low, u), b, u > 0);
        wgmma_tf32(part, fragment(high, u), b + (Tile::kLowOffset >> 4), 1);
        wgmma_tf32(part, fragment(high, u), b, 1);
      }
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kSums; ++i) sum[m][h][i] += part[i];
    }
  }

  template <int Steps>
  __device__ __forceinline__ void multiply_once(const float (&value)[Steps * 4], int m, uint32_t streamed, int first) {
    uint32_t a[Steps * 4], unused[Steps * 4];
    split<Steps, false>(value, a, unused);
    wgmma_fence();
#pragma unroll
    for (int h = 0; h < Tile::kHalves; ++h)
#pragma unroll
      for (int u = 0; u < Steps; ++u) wgmma_tf32(sum[m][h], fragment(a, u), descriptor(streamed, first + u, h), 1);
    wgmma_commit();
    wgmma_wait<0>();
  }

  __device__ __forceinline__ void multiply_stage(uint32_t streamed, uint32_t gathered, uint32_t mask) {
    const int steps = p.geometry.steps;
    int step = 0;
    for (; step + 4 <= steps; step += 4) multiply<4>(streamed, gathered, step, mask);
    for (; step < steps; ++step) multiply<1>(streamed, gathered, step, mask);
  }

  /// Moves the sums to the workspace: the first flush of a block writes, later ones add, each thread to its own
  /// elements.
  __device__ __forceinline__ void flush(bool add) {
    const auto& g = p.geometry;
    // A zero the compiler cannot see through: without it the addresses below are computed ahead of the main loop and
    // take its registers.
    int zero;
    asm volatile("mov.s32 %0, 0;" : "=r"(zero));
    double* partial =
        p.partial + (static_cast<int64_t>(block.split + zero) * g.groups + block.group) * g.columns * g.rows;
    constexpr int kBatch = 4;  // independent reads in flight
#pragma unroll
    for (int m = 0; m < Tile::kTiles; ++m) {
      if (!active(m)) continue;
#pragma unroll
      for (int h = 0; h < Tile::kHalves; ++h) {
#pragma unroll
        for (int first = 0; first < kSums; first += kBatch) {
          double before[kBatch];
          double* to[kBatch];
#pragma unroll
          for (int j = 0; j < kBatch; ++j) {
            const int i = first + j;
            const int r = first_row(m) + zero + (i / 2 % 2) * 8;
            const int column = zero + h * Tile::kWgmmaColumns + i / 4 * 8 + thread % 4 * 2 + i % 2;
            const bool inside = r < g.rows && column < block.columns;
            to[j] = inside ? partial + static_cast<int64_t>(block.first_column + column) * g.rows + r : nullptr;
            before[j] = add && inside ? *to[j] : 0.0;
          }
#pragma unroll
          for (int j = 0; j < kBatch; ++j)
            if (to[j] != nullptr) *to[j] = before[j] + static_cast<double>(sum[m][h][first + j]);
        }
      }
    }
    clear();
  }

  __device__ __forceinline__ void consume(const Shared& shared) {
    int slot = 0;
    uint32_t parity = 0;
    int unflushed = 0;
    bool add = false;
    for (int stage = 0; stage < block.stages; ++stage) {
      barrier_wait(shared.full(slot), parity);
      multiply_stage(shared.streamed(slot), shared.gathered(slot),
                     static_cast<uint32_t>(load_shared_word(shared.masks(slot) + thread % 4 * 4)));
      __syncwarp();
      if (thread % 32 == 0) barrier_arrive(shared.empty(slot));
      if (++slot == shared.pipeline) slot = 0, parity ^= 1;
      if (++unflushed == p.geometry.flush_stages || stage + 1 == block.stages) {
        flush(add);
        add = true;
        unflushed = 0;
      }
    }
  }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1) accumulate(const __grid_constant__ DenseWeightParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(128) unsigned char memory[];
  const Block block(p.geometry, Tile::kColumns);
  const Shared shared(p.geometry, memory);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < p.geometry.pipeline; ++slot) {
      barrier_init(shared.full(slot), 2 * 128);  // each producer: its copies, its stores
      barrier_init(shared.empty(slot), kConsumers * 4);
    }
    barrier_init_fence();
  }
  fill_tables(p.geometry, block, shared, Tile::kColumns);
  __syncthreads();
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
  if (warpgroup == kConsumers) {
    registers_decrease<Tile::kProducerRegisters>();
    if (p.geometry.streamed.vector == 4) {
      produce<Tile, true>(p, block, shared, thread);
    } else {
      produce<Tile, false>(p, block, shared, thread);
    }
  } else {
    registers_increase<Tile::kConsumerRegisters>();
    Consumer<Tile>(p, block, warpgroup, thread).consume(shared);
  }
#endif
}

}  // namespace dense_weight

template <int Columns, bool Split>
void launch_dense_weight(const DenseWeightPlan& plan, const float* gathered, const float* streamed, double* partial,
                         cudaStream_t stream) {
  using Tile = DenseWeightTile<Columns, Split>;
  const DenseWeightParams params{gathered, streamed, partial, plan.geometry};
  launch("dense_weight", dense_weight::accumulate<Tile>, dim3(static_cast<unsigned>(plan.blocks)), dim3(Tile::kThreads),
         plan.shared_bytes, stream, params);
}

}  // namespace halo::cuda::conv
