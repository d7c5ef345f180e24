// Dense convolution weight gradient on Hopper tensor cores. The geometry is in dense_weight_plan.h; here it is executed.
//
// A block computes up to 384 rows (input channel, tap) by N columns (output channels) of the gradient over one range of
// positions (a split). One warpgroup loads, three multiply:
//   gathered operand  (rows)    a float32 halo tile per stage in shared memory, filled by cp.async with zeros outside the
//                               tensor. Consumers read wgmma A fragments out of it at any tap offset, straight into
//                               registers, and split them there: no im2col is ever written.
//   streamed operand  (columns) read once per block, split into high and low TF32 parts, stored as K-major core matrices,
//                               since wgmma takes B only from shared memory.
// The tensor core cuts off the low bits of each of its additions, so its sums are moved to float32 registers every
// kPromoteSteps k8 steps, and those to float64 in the workspace every `flush_stages` stages: the error stays put at any
// length. A second kernel adds the splits in order. No atomics: the bits depend on the plan alone.
//
// Limits: float32 storage, both operands dense; extents below 2^30 (int32 coordinates), offsets 64-bit; one block's halo
// tile must fit in shared memory beside the streamed tile (plan_dense_weight answers `valid == false` otherwise, which
// happens for dilations of several thousand, and the dispatcher falls back).
#pragma once

#include "dense_weight_plan.h"

#include "../device/async_copy.cuh"
#include "../device/mbarrier.cuh"
#include "../device/tf32_split.cuh"
#include "../device/wgmma.cuh"

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
  static constexpr int kConsumerRegisters = Split ? 152 : 136;
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
  int64_t batch;
  int depth, row_block, column_block;

  __device__ Cursor(const DenseWeightGeometry& g, int64_t stage) {
    column_block = static_cast<int>(stage % g.column_blocks_w);
    stage /= g.column_blocks_w;
    row_block = static_cast<int>(stage % g.row_blocks);
    stage /= g.row_blocks;
    depth = static_cast<int>(stage % g.positions[0]);
    batch = stage / g.positions[0];
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
  int first_tile, tiles;     ///< 64-row tiles of the group
  int first_column, columns;
  int first_channel, channels;  ///< of the gathered operand that its rows need
  int group, split;
  int64_t first_stage, stages;

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
    stages = g.stages * (split + 1) / g.splits - first_stage;
  }
};

/// Shared memory: pipeline x (streamed tile, gathered tile), then full and empty barriers, then each stage's limits.
struct Shared {
  uint32_t base, barriers;
  int stage_bytes, streamed_bytes, pipeline;

  __device__ Shared(const DenseWeightGeometry& g, const void* memory)
      : base(shared_address(memory)),
        stage_bytes(g.streamed_bytes + g.gathered_bytes),
        streamed_bytes(g.streamed_bytes),
        pipeline(g.pipeline) {
    barriers = base + pipeline * stage_bytes;
  }
  __device__ uint32_t streamed(int slot) const { return base + slot * stage_bytes; }
  __device__ uint32_t gathered(int slot) const { return base + slot * stage_bytes + streamed_bytes; }
  __device__ uint32_t full(int slot) const { return barriers + slot * 8; }
  __device__ uint32_t empty(int slot) const { return barriers + (kMaxStages + slot) * 8; }
  __device__ uint32_t limits(int slot) const { return barriers + 2 * kMaxStages * 8 + slot * 4; }
};

__device__ __forceinline__ float load_shared(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ uint32_t load_shared_word(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address));
  return value;
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

/// True where every magnitude is well inside float32's range, so that rounding up cannot make an infinity. False for
/// infinities and NaN.
template <int Steps>
__device__ __forceinline__ bool ordinary(const float (&value)[Steps][4]) {
  float magnitude = 0.0f;
#pragma unroll
  for (int i = 0; i < Steps * 4; ++i) magnitude += fabsf(value[i / 4][i % 4]);
  return magnitude < kTf32Max;
}

/// Splits A fragments: nearly all take the cheap form (the tensor core ignores bits below TF32's by itself).
template <int Steps>
__device__ __forceinline__ void split_fragments(const float (&value)[Steps][4], uint32_t (&high)[Steps][4],
                                                uint32_t (&low)[Steps][4]) {
  if (ordinary<Steps>(value)) {
#pragma unroll
    for (int i = 0; i < Steps * 4; ++i) {
      const Tf32Pair pair = split_tf32_unguarded(value[i / 4][i % 4]);
      high[i / 4][i % 4] = pair.high;
      low[i / 4][i % 4] = pair.low;
    }
  } else {
#pragma unroll
    for (int i = 0; i < Steps * 4; ++i) {
      const Tf32Pair pair = split_tf32(value[i / 4][i % 4]);
      high[i / 4][i % 4] = pair.high;
      low[i / 4][i % 4] = pair.low;
    }
  }
}

/// Rounds A fragments to TF32, with the same two forms.
template <int Steps>
__device__ __forceinline__ void round_fragments(const float (&value)[Steps][4], uint32_t (&high)[Steps][4]) {
  if (ordinary<Steps>(value)) {
#pragma unroll
    for (int i = 0; i < Steps * 4; ++i) high[i / 4][i % 4] = __float_as_uint(value[i / 4][i % 4]) + kTf32HalfUlp;
  } else {
#pragma unroll
    for (int i = 0; i < Steps * 4; ++i) high[i / 4][i % 4] = round_tf32_finite(value[i / 4][i % 4]);
  }
}

/// Copies a stage's halo tile: lines (plane, line, channel), channel fastest, dealt out to groups of `lanes` threads.
__device__ __forceinline__ void load_gathered(const DenseWeightParams& p, const Block& block, const Cursor& at,
                                              uint32_t tile, int thread) {
  const auto& g = p.geometry.gathered;
  const int lane = thread % g.lanes;
  const int workers = 128 / g.lanes;
  const int z0 = at.depth * g.stride[0] - g.pad[0];
  const int y0 = at.row_block * p.geometry.step_rows * g.stride[1] - g.pad[1];
  const int x0 = at.column_block * p.geometry.row_steps * 8 * g.stride[2] - g.pad[2] - g.lead;
  const float* source = p.gathered + at.batch * g.batch + block.group * g.group + block.first_channel * g.channel;
  int channel = thread / g.lanes, line = 0, plane = 0;
  while (true) {
    while (channel >= block.channels) {
      channel -= block.channels;
      if (++line == g.lines) {
        line = 0;
        if (++plane == g.planes) return;
      }
    }
    const int z = z0 + plane * g.step[0], y = y0 + line * g.step[1];
    const bool inside = static_cast<unsigned>(z) < static_cast<unsigned>(g.extent[0]) &&
                        static_cast<unsigned>(y) < static_cast<unsigned>(g.extent[1]);
    const float* from =
        source + channel * g.channel + (static_cast<int64_t>(z) * g.extent[1] + y) * g.extent[2] + x0;
    const uint32_t to = tile + (channel * g.channel_pitch + plane * g.plane_pitch + line * g.line_pitch) * 4;
    if (g.vector == 4) {
      for (int w = lane * 4; w < g.words; w += g.lanes * 4) {
        const int left = inside && x0 + w >= 0 ? g.extent[2] - (x0 + w) : 0;
        copy_async_16(to + w * 4, left > 0 ? from + w : p.gathered, max(0, min(left, 4)) * 4);
      }
    } else {
      for (int w = lane; w < g.words; w += g.lanes) {
        const int x = x0 + w * g.step[2];
        const bool valid = inside && static_cast<unsigned>(x) < static_cast<unsigned>(g.extent[2]);
        copy_async_4(to + w * 4, valid ? from + static_cast<int64_t>(w) * g.step[2] : p.gathered, valid);
      }
    }
    channel += workers;
  }
}

/// Where position k of a stage lies in the streamed tensor; `valid` is false outside it.
struct StreamedPosition {
  int64_t offset;
  bool valid;

  __device__ StreamedPosition(const DenseWeightGeometry& g, const Cursor& at, int k, int tap) {
    const int line = k / (8 * g.row_steps);
    const int h = at.row_block * g.step_rows + line;
    const int w = at.column_block * g.row_steps * 8 + k - line * 8 * g.row_steps;
    const int shift = g.fold_pad - tap * g.fold_dilation;
    const int z = at.depth + (g.fold_axis == 0 ? shift : 0);
    const int y = h + (g.fold_axis == 1 ? shift : 0);
    valid = line < g.step_rows && h < g.positions[1] && w < g.streamed.extent[2] &&
            static_cast<unsigned>(z) < static_cast<unsigned>(g.streamed.extent[0]) &&
            static_cast<unsigned>(y) < static_cast<unsigned>(g.streamed.extent[1]);
    offset = (static_cast<int64_t>(z) * g.streamed.extent[1] + y) * g.streamed.extent[2] + w;
  }
};

/// Byte offset in a stage's streamed tile of position k (a multiple of 4 for the vector form) of a column group.
__device__ __forceinline__ int depth_offset(int k) { return k / 4 * kCoreMatrixPitch + k % 4 * 4; }
__device__ __forceinline__ int column_offset(int column) {
  return column / 8 * kColumnGroupPitch + column % 8 * 16;
}

template <class Tile>
__device__ __forceinline__ void store_streamed(uint32_t address, float value) {
  if constexpr (Tile::kSplit) {
    const Tf32Pair pair = split_tf32(value);
    store_shared(address, pair.high);
    store_shared(address + Tile::kLowOffset, pair.low);
  } else {
    store_shared(address, round_tf32_finite(value));
  }
}

template <class Tile>
__device__ __forceinline__ void store_streamed(uint32_t address, const float4& value) {
  const float v[4] = {value.x, value.y, value.z, value.w};
  uint32_t high[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (Tile::kSplit) {
      const Tf32Pair pair = split_tf32(v[i]);
      high[i] = pair.high;
      low[i] = pair.low;
    } else {
      high[i] = round_tf32_finite(v[i]);
    }
  }
  store_shared(address, high);
  if constexpr (Tile::kSplit) store_shared(address + Tile::kLowOffset, low);
}

/// Reads, splits and stores a stage's streamed tile, one word at a time: a warp covers 32 positions of one column, so
/// that reads coalesce; the core matrix pitch spreads its stores over the banks.
template <class Tile>
__device__ __forceinline__ void load_streamed_words(const DenseWeightParams& p, const Block& block, const Cursor& at,
                                                    uint32_t tile, int thread) {
  constexpr int kBatch = Tile::kLoads / 2;
  const auto& g = p.geometry;
  const int lane = thread % 32, warp = thread / 32;
  const int channels = block.columns / g.fold_taps;
  const float* source = p.streamed + at.batch * g.streamed.batch + block.group * g.streamed.group +
                        block.first_column * g.streamed.channel;
  for (int tap = 0; tap < g.fold_taps; ++tap) {
    const StreamedPosition first(g, at, lane, tap), second(g, at, lane + 32, tap);
    for (int begin = warp; begin < channels; begin += 4 * kBatch) {
      float value[kBatch][2];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int channel = begin + 4 * i;
        const float* from = source + channel * g.streamed.channel;
        value[i][0] = channel < channels && first.valid ? __ldg(from + first.offset) : 0.0f;
        value[i][1] = channel < channels && second.valid ? __ldg(from + second.offset) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (begin + 4 * i >= channels) break;
        const uint32_t to = tile + column_offset(tap * channels + begin + 4 * i);
        store_streamed<Tile>(to + depth_offset(lane), value[i][0]);
        if (g.steps > 4) store_streamed<Tile>(to + depth_offset(lane + 32), value[i][1]);
      }
    }
  }
}

/// The same, four positions (16 aligned bytes) at a time.
template <class Tile>
__device__ __forceinline__ void load_streamed_vectors(const DenseWeightParams& p, const Block& block, const Cursor& at,
                                                      uint32_t tile, int thread) {
  constexpr int kBatch = Tile::kLoads / 4;
  const auto& g = p.geometry;
  const int k = thread % 16 * 4;
  const int channels = block.columns / g.fold_taps;
  const float* source = p.streamed + at.batch * g.streamed.batch + block.group * g.streamed.group +
                        block.first_column * g.streamed.channel;
  for (int tap = 0; tap < g.fold_taps; ++tap) {
    const StreamedPosition position(g, at, k, tap);
    for (int begin = thread / 16; begin < channels; begin += 8 * kBatch) {
      float4 value[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int channel = begin + 8 * i;
        const float* from = source + channel * g.streamed.channel + position.offset;
        value[i] = channel < channels && position.valid ? __ldg(reinterpret_cast<const float4*>(from))
                                                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (begin + 8 * i >= channels) break;
        store_streamed<Tile>(tile + column_offset(tap * channels + begin + 8 * i) + depth_offset(k), value[i]);
      }
    }
  }
}

/// How many positions of a stage's lines, and how many lines, exist: columns | lines << 16.
__device__ __forceinline__ uint32_t stage_limits(const DenseWeightGeometry& g, const Cursor& at) {
  const int columns = min(8 * g.row_steps, g.positions[2] - at.column_block * 8 * g.row_steps);
  const int lines = min(g.step_rows, g.positions[1] - at.row_block * g.step_rows);
  return static_cast<uint32_t>(columns) | static_cast<uint32_t>(lines) << 16;
}

template <class Tile>
__device__ __forceinline__ void produce(const DenseWeightParams& p, const Block& block, const Shared& shared,
                                        int thread) {
  Cursor at(p.geometry, block.first_stage);
  int slot = 0;
  uint32_t parity = 1;  // a fresh barrier counts as emptied
  for (int64_t stage = 0; stage < block.stages; ++stage) {
    barrier_wait(shared.empty(slot), parity);
    load_gathered(p, block, at, shared.gathered(slot), thread);
    copy_async_arrive(shared.full(slot));
    if (p.geometry.streamed.vector == 4) {
      load_streamed_vectors<Tile>(p, block, at, shared.streamed(slot), thread);
    } else {
      load_streamed_words<Tile>(p, block, at, shared.streamed(slot), thread);
    }
    if (thread == 0) store_shared(shared.limits(slot), stage_limits(p.geometry, at));
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

  /// A fragments of `Steps` k8 steps. `limits` masks positions beyond the end of a line, where the streamed operand is
  /// zero but the gathered one may hold an infinity of other positions.
  template <int Steps>
  __device__ __forceinline__ void load(float (&value)[Steps][4], int m, uint32_t gathered, int first,
                                       uint32_t limits, bool ragged) const {
    const auto& g = p.geometry;
#pragma unroll
    for (int u = 0; u < Steps; ++u) {
      const uint32_t at = gathered + g.step_offset[first + u] * 4;
      const uint32_t half = g.position_words * 16;
      value[u][0] = load_shared(at + row[m][0]);
      value[u][1] = load_shared(at + row[m][1]);
      value[u][2] = load_shared(at + half + row[m][0]);
      value[u][3] = load_shared(at + half + row[m][1]);
    }
    if (!ragged) return;
    const int columns = static_cast<int>(limits & 0xffff), lines = static_cast<int>(limits >> 16);
#pragma unroll
    for (int u = 0; u < Steps; ++u) {
      const int line = (first + u) / g.row_steps;
      const int column = (first + u - line * g.row_steps) * 8 + thread % 4;
      const bool near = line < lines && column < columns, far = line < lines && column + 4 < columns;
      value[u][0] = near ? value[u][0] : 0.0f;
      value[u][1] = near ? value[u][1] : 0.0f;
      value[u][2] = far ? value[u][2] : 0.0f;
      value[u][3] = far ? value[u][3] : 0.0f;
    }
  }

  /// B of k8 step `step`, half `h` of the columns.
  static __device__ __forceinline__ uint64_t descriptor(uint32_t streamed, int step, int h) {
    constexpr uint64_t kLeading = uint64_t{kCoreMatrixPitch >> 4} << 16;
    constexpr uint64_t kStride = uint64_t{kColumnGroupPitch >> 4} << 32;
    const uint32_t address =
        streamed + step * 2 * kCoreMatrixPitch + h * (Tile::kWgmmaColumns / 8) * kColumnGroupPitch;
    return static_cast<uint64_t>(address >> 4) | kLeading | kStride;
  }

  /// Adds k8 steps [first, first + Steps) of a stage to the sums.
  template <int Steps>
  __device__ __forceinline__ void multiply(uint32_t streamed, uint32_t gathered, int first, uint32_t limits,
                                           bool ragged) {
#pragma unroll
    for (int m = 0; m < Tile::kTiles; ++m) {
      if (!active(m)) continue;
      float value[Steps][4];
      load<Steps>(value, m, gathered, first, limits, ragged);
      if constexpr (Tile::kSplit) {
        multiply_split<Steps>(value, m, streamed, first);
      } else {
        multiply_once<Steps>(value, m, streamed, first);
      }
    }
  }

  template <int Steps>
  __device__ __forceinline__ void multiply_split(const float (&value)[Steps][4], int m, uint32_t streamed, int first) {
    uint32_t high[Steps][4], low[Steps][4];
    split_fragments<Steps>(value, high, low);
#pragma unroll
    for (int h = 0; h < Tile::kHalves; ++h) {
      float part[kSums];
      wgmma_fence();
#pragma unroll
      for (int u = 0; u < Steps; ++u) {
        const uint64_t b = descriptor(streamed, first + u, h);
        wgmma_tf32(part, low[u], b, u > 0);
        wgmma_tf32(part, high[u], b + (Tile::kLowOffset >> 4), 1);
        wgmma_tf32(part, high[u], b, 1);
      }
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kSums; ++i) sum[m][h][i] += part[i];
    }
  }

  template <int Steps>
  __device__ __forceinline__ void multiply_once(const float (&value)[Steps][4], int m, uint32_t streamed, int first) {
    uint32_t a[Steps][4];
    round_fragments<Steps>(value, a);
    wgmma_fence();
#pragma unroll
    for (int h = 0; h < Tile::kHalves; ++h)
#pragma unroll
      for (int u = 0; u < Steps; ++u) wgmma_tf32(sum[m][h], a[u], descriptor(streamed, first + u, h), 1);
    wgmma_commit();
    wgmma_wait<0>();
  }

  __device__ __forceinline__ void multiply_stage(uint32_t streamed, uint32_t gathered, uint32_t limits) {
    const auto& g = p.geometry;
    const bool ragged = limits != (static_cast<uint32_t>(8 * g.row_steps) | static_cast<uint32_t>(g.step_rows) << 16);
    int step = 0;
    for (; step + 4 <= g.steps; step += 4) multiply<4>(streamed, gathered, step, limits, ragged);
    for (; step < g.steps; ++step) multiply<1>(streamed, gathered, step, limits, ragged);
  }

  /// Moves the sums to the workspace: the first flush of a block writes, later ones add, each thread to its own elements.
  __device__ __forceinline__ void flush(bool add) {
    const auto& g = p.geometry;
    // A zero the compiler cannot see through: without it the addresses below are computed ahead of the main loop and
    // take its registers.
    int zero;
    asm volatile("mov.s32 %0, 0;" : "=r"(zero));
    double* partial =
        p.partial + (static_cast<int64_t>(block.split + zero) * g.groups + block.group) * g.columns * g.rows;
    constexpr int kBatch = 8;  // independent reads in flight
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
    for (int64_t stage = 0; stage < block.stages; ++stage) {
      barrier_wait(shared.full(slot), parity);
      multiply_stage(shared.streamed(slot), shared.gathered(slot), load_shared_word(shared.limits(slot)));
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
  __syncthreads();
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
  if (warpgroup == kConsumers) {
    registers_decrease<Tile::kProducerRegisters>();
    produce<Tile>(p, block, shared, thread);
  } else {
    registers_increase<Tile::kConsumerRegisters>();
    Consumer<Tile>(p, block, warpgroup, thread).consume(shared);
  }
}

}  // namespace dense_weight
}  // namespace halo::cuda::conv
