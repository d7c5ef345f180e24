// Dense convolution weight gradient on Hopper tensor cores. The geometry is in dense_weight_plan.h; here it is
// executed.
//
// A block computes up to 384 rows (input channel, tap) by N columns (output channels) of the gradient over one range of
// positions (a split). One warpgroup loads, three multiply:
//   gathered operand  (rows)    a float32 halo tile per stage, fetched by the copy engine. Consumers read wgmma A
//                               fragments out of it at any tap offset, straight into registers, and split them there:
//                               no im2col is ever written.
//   streamed operand  (columns) fetched by the copy engine too, then split by the loading warpgroup into high and low
//   TF32
//                               parts, stored as K-major core matrices, since wgmma takes B only from shared memory.
// The copy engine sees flat channel planes (dense_weight_plan.h), so any width and alignment will do; what a box holds
// beyond the end of a line is the next line. Where a window may see that, the loading warpgroup writes the padding's
// zeros; positions that do not exist are zero in the streamed tile and masked in the gathered fragments.
// The tensor core cuts off the low bits of each of its additions, so its sums are moved to float32 registers every
// kPromoteSteps k8 steps, and those to float64 in the workspace every `flush_stages` stages: the error stays put at any
// length. A second kernel adds the splits in order. No atomics: the bits depend on the plan alone.
//
// Limits: float32 storage, both operands dense; channel planes below 2^28 floats, offsets 64-bit; a halo tile of 64
// rows must fit in shared memory beside the streamed tile and its lines in 256 words (`valid == false` from
// plan_dense_weight otherwise, which happens for large dilations along the width, and the dispatcher falls back).
#pragma once

#include <type_traits>

#include "../device/async_copy.cuh"
#include "../device/mbarrier.cuh"
#include "../device/tf32_split.cuh"
#include "../device/wgmma.cuh"
#include "../launch.h"
#include "dense_weight_launch.h"
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
  static constexpr int kPromoteSteps = 4;
  static constexpr int kThreads = (kConsumers + 1) * 128;
  /// Registers a thread: entry has 128 (65,536 / 512).
  static constexpr int kConsumerRegisters = 152;
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

/// The loading warpgroup. Each stage costs it little arithmetic: what does not change is computed by the constructor.
template <class Tile>
class Producer {
 public:
  __device__ __forceinline__ Producer(const DenseWeightParams& params, const Block& b, const Shared& s, int t)
      : p(params), g(params.geometry), block(b), shared(s), lane(t % 32), warp(t / 32), thread(t) {
    line = thread % 16 / (2 * g.row_steps);
    box_major = warp == 0 ? (lane >> g.gathered.period / 2) / g.lines : (lane >> g.streamed.period / 2) / g.fold_taps;
    step_line = lane / 4 / g.row_steps;
  }

  __device__ __forceinline__ void produce() {
    Cursor at(g, block.first_stage), next = at;
    Slot tile, gathered, raw, fetch_gathered, fetch_raw;
    tile.parity = 1;  // a fresh barrier counts as emptied
    int to_fetch = block.stages;
    const auto fetch_next = [&] {
      if (to_fetch == 0) return;
      fetch(next, fetch_gathered.index, fetch_raw.index);
      next.next(g);
      fetch_gathered.next(g.tiles + g.ahead);
      fetch_raw.next(1 + g.ahead);
      --to_fetch;
    };
    for (int i = 0; i < g.ahead; ++i) fetch_next();
    for (int stage = 0; stage < block.stages; ++stage) {
      // The tile's last readers also freed the gathered tile that the next fetch fills; the raw box was freed by
      // sync() below.
      barrier_wait(shared.empty(tile.index), tile.parity);
      fetch_next();
      barrier_wait(shared.fetched(gathered.index), gathered.parity);
      patch(at, gathered.index, raw.index);
      convert(at, shared.raw(raw.index), shared.streamed(tile.index));
      if (warp == 3) write_note(at, shared.note(tile.index));
      fence_async_proxy();
      barrier_arrive(shared.full(tile.index));
      sync();
      at.next(g);
      tile.next(g.tiles);
      gathered.next(g.tiles + g.ahead);
      raw.next(1 + g.ahead);
    }
  }

 private:
  static constexpr int kOutside = (1 << 30) + 256;  ///< a coordinate beyond any row: the box is all zeros

  static __device__ __forceinline__ void sync() { asm volatile("bar.sync 7, 128;" ::: "memory"); }

  /// Flat channel of the block's first one in a batch.
  __device__ __forceinline__ int first_gathered(const Cursor& at) const {
    return (at.batch * g.groups + block.group) * g.group_channels + block.first_channel;
  }
  __device__ __forceinline__ int first_streamed(const Cursor& at) const {
    return (at.batch * g.groups + block.group) * g.streamed_channels + block.first_column;
  }
  __device__ __forceinline__ int left_edge(const Cursor& at) const {
    return at.column_block * g.row_steps * 8 * g.stride[2] - g.pad[2];
  }
  /// Position in its plane of a stored line's first word, and whether the line (not the word) is inside the tensor.
  __device__ __forceinline__ bool gathered_line(const Cursor& at, int plane, int row, int& flat) const {
    const int z = at.depth * g.stride[0] - g.pad[0] + plane * g.line_step[0];
    const int y = at.row_block * g.step_rows * g.stride[1] - g.pad[1] + row * g.line_step[1];
    flat = (z * g.extent[1] + y) * g.extent[2] + left_edge(at);
    return static_cast<unsigned>(z) < static_cast<unsigned>(g.extent[0]) &&
           static_cast<unsigned>(y) < static_cast<unsigned>(g.extent[1]);
  }
  __device__ __forceinline__ bool streamed_line(const Cursor& at, int row, int tap, int& flat) const {
    const int shift = g.fold_pad - tap * g.fold_dilation;
    const int h = at.row_block * g.step_rows + row;
    const int z = at.depth + (g.fold_axis == 0 ? shift : 0), y = h + (g.fold_axis == 1 ? shift : 0);
    flat = (z * g.streamed_extent[1] + y) * g.streamed_extent[2] + at.column_block * g.row_steps * 8;
    return row < g.step_rows && h < g.positions[1] &&
           static_cast<unsigned>(z) < static_cast<unsigned>(g.streamed_extent[0]) &&
           static_cast<unsigned>(y) < static_cast<unsigned>(g.streamed_extent[1]);
  }
  /// Index in the tensor, modulo 4, of position `flat` of a channel; `base` is the tensor's own, from its map's base.
  static __device__ __forceinline__ int shift(const PlaneMatrix& m, int channel, int flat, int base) {
    return ((channel & 3) * static_cast<int>(m.plane & 3) + flat + base) & 3;
  }

  /// Starts the copies of a stage: a box a lane, the gathered operand by warp 0, the streamed one by warp 1.
  __device__ __forceinline__ void fetch(const Cursor& at, int gathered_slot, int raw_slot) const {
    const uint32_t barrier = shared.fetched(gathered_slot);
    if (warp == 0) {
      const PlaneMatrix& m = g.gathered;
      const int boxes = g.planes * g.lines * m.period;
      if (lane == 0) {
        const int words = boxes * m.box_channels * m.box_words +
                          g.raw_lines() * g.streamed.period * g.streamed.box_channels * g.streamed.box_words;
        barrier_expect(barrier, words * 4);
      }
      const int first = first_gathered(at);
      int plane = box_major;
      for (int i = lane; i < boxes; i += 32) {
        const int residue = i & (m.period - 1), row = i >> m.period / 2;
        if (i >= 32) plane = row / g.lines;
        int flat;
        const bool inside = gathered_line(at, plane, row - plane * g.lines, flat);
        const int begin = row * g.line_pitch, early = begin % 32;
        const uint32_t to = shared.gathered(gathered_slot) + (begin - early + residue * m.box_pitch) * 4;
        fetch_box(to, &p.gathered_map, m, first + residue, inside, flat + p.gathered_shift, early, barrier);
      }
    } else if (warp == 1) {
      const PlaneMatrix& m = g.streamed;
      const int first = first_streamed(at);
      int own_line = box_major;
      for (int i = lane; i < g.raw_lines() * m.period; i += 32) {
        const int residue = i & (m.period - 1), row = i >> m.period / 2;
        if (i >= 32) own_line = row / g.fold_taps;
        int flat;
        const bool inside = streamed_line(at, own_line, row - own_line * g.fold_taps, flat);
        fetch_box(shared.raw(raw_slot) + i * m.box_pitch * 4, &p.streamed_map, m, first + residue, inside,
                  flat + p.streamed_shift, 0, barrier);
      }
    }
  }

  static __device__ __forceinline__ void fetch_box(uint32_t to, const CUtensorMap* map, const PlaneMatrix& m,
                                                   int channel, bool inside, int at, int early, uint32_t barrier) {
    const int residue = channel & (m.period - 1);
    const int corner = ((residue * static_cast<int>(m.plane) + at) & ~3) - early;
    copy_box(to, map, inside ? corner : kOutside, channel >> m.period / 2, barrier);
  }

  /// Writes what the copy engine cannot: zeros left and right of a line where windows reach there, and channels beyond
  /// the last whole row of the plane matrix.
  __device__ __forceinline__ void patch(const Cursor& at, int gathered_slot, int raw_slot) const {
    const PlaneMatrix& m = g.gathered;
    const int x0 = left_edge(at);
    const int left = min(max(-x0, 0), g.line_words);
    const int right = g.right_padding ? max(g.extent[2] - x0, 0) : g.line_words;
    const int first = first_gathered(at);
    if (left > 0 || right < g.line_words || first + block.channels > m.tail()) {
      for (int i = thread; i < g.planes * g.lines * block.channels; i += 128) {
        const int row = i / block.channels, channel = i - row * block.channels;
        int flat;
        const bool inside = gathered_line(at, row / g.lines, row % g.lines, flat);
        const int begin = shift(m, first + channel, flat, p.gathered_shift);
        const uint32_t to = shared.gathered(gathered_slot) + (row * g.line_pitch + m.channel_word(channel) + begin) * 4;
        const int end = g.line_words - begin;
        if (first + channel >= m.tail()) {
          const float* from = p.gathered + (first + channel) * m.plane + flat;
          for (int w = 0; w < end; ++w) {
            const bool valid = inside && x0 + w >= 0 && x0 + w < g.extent[2];
            store_shared(to + w * 4, valid ? __float_as_uint(from[w]) : 0);
          }
        } else {
          for (int w = 0; w < min(left, end); ++w) store_shared(to + w * 4, 0);
          for (int w = right; w < end; ++w) store_shared(to + w * 4, 0);
        }
      }
    }
    const int channels = block.columns / g.fold_taps;
    if (first_streamed(at) + channels > g.streamed.tail()) patch_streamed(at, raw_slot, channels);
  }

  __device__ __forceinline__ void patch_streamed(const Cursor& at, int raw_slot, int channels) const {
    const PlaneMatrix& m = g.streamed;
    const int w0 = at.column_block * g.row_steps * 8;
    for (int i = thread; i < g.raw_lines() * channels; i += 128) {
      const int row = i / channels, channel = i - row * channels;
      const int64_t source = first_streamed(at) + channel;
      if (source < m.tail()) continue;
      int flat;
      const bool inside = streamed_line(at, row / g.fold_taps, row % g.fold_taps, flat);
      const int begin = shift(m, static_cast<int>(source), flat, p.streamed_shift);
      const uint32_t to = shared.raw(raw_slot) + (row * m.period * m.box_pitch + m.channel_word(channel) + begin) * 4;
      for (int w = 0; w < m.box_words - begin; ++w) {
        const bool valid = inside && w0 + w < g.streamed_extent[2];
        store_shared(to + w * 4, valid ? __float_as_uint(p.streamed[source * m.plane + flat + w]) : 0);
      }
    }
    sync();
  }

  /// Raw boxes to high and low core matrices. A thread takes four positions of every eighth column; the pitch spreads
  /// the stores of neighbouring threads over the banks.
  __device__ __forceinline__ void convert(const Cursor& at, uint32_t raw, uint32_t tile) const {
    if (thread % 16 >= 2 * g.steps) return;
    const int word = (thread % 16 - line * 2 * g.row_steps) * 4;
    int flat;
    const bool first_tap = streamed_line(at, line, 0, flat);
    const int left = g.streamed_extent[2] - (at.column_block * g.row_steps * 8 + word);  // positions of this line
    const int first_shift = shift(g.streamed, first_streamed(at), flat, p.streamed_shift);
    uint32_t valid = first_tap;  // bit t: of folded tap t
    for (int tap = 1; tap < g.fold_taps; ++tap)
      valid |= static_cast<uint32_t>(streamed_line(at, line, tap, flat)) << tap;
    const bool whole = left >= 4 && valid == (1u << g.fold_taps) - 1;
    const uint32_t from = raw + (line * g.fold_taps * g.streamed.period * g.streamed.box_pitch + word) * 4;
    const bool plain = whole && !g.streamed_shift;
    const bool cheap = plain ? convert<true, true>(from, tile, first_shift, left, valid)
                             : convert<true, false>(from, tile, first_shift, whole ? 4 : left, valid);
    if (!cheap) convert<false, false>(from, tile, first_shift, left, valid);
  }

  /// All columns of this thread. `Plain`: whole, aligned quadruples. False if a number was not ordinary() and Cheap
  /// conversion therefore wrong.
  template <bool Cheap, bool Plain>
  __device__ __forceinline__ bool convert(uint32_t from, uint32_t tile, int first_shift, int left,
                                          uint32_t valid) const {
    constexpr int kBatch = Tile::kColumns % 32 == 0 ? 4 : 2;
    const uint32_t to = tile + thread % 16 * depth_pitch(Tile::kColumns) + thread / 16 * 16;
    const uint32_t table = shared.column_table + thread / 16 * kColumnEntryBytes;
    float magnitude = 0.0f;
#pragma unroll(Cheap&& Plain ? 2 : 1)
    for (int batch = 0; batch < Tile::kColumns / 8 / kBatch; ++batch) {
      float value[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int2 entry = load_shared_pair(table + (batch * kBatch + i) * 8 * kColumnEntryBytes);
        float4 v = load_shared_vector(from + entry.x * 4);
        int keep = 4;
        if constexpr (!Plain) {
          if (g.streamed_shift)
            v = advance(v, load_shared_vector(from + entry.x * 4 + 16), first_shift + (entry.y >> 8));
          keep = (valid >> (entry.y & 31) & 1) != 0 ? left : 0;
        }
        value[i][0] = keep > 0 ? v.x : 0.0f;
        value[i][1] = keep > 1 ? v.y : 0.0f;
        value[i][2] = keep > 2 ? v.z : 0.0f;
        value[i][3] = keep > 3 ? v.w : 0.0f;
        magnitude += fabsf(value[i][0]) + fabsf(value[i][1]) + (fabsf(value[i][2]) + fabsf(value[i][3]));
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        Tf32Pair pair[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) pair[j] = to_tf32<Tile::kSplit, Cheap>(value[i][j]);
        const uint32_t high = to + (batch * kBatch + i) * 128;
        store_shared(high, pair[0].high, pair[1].high, pair[2].high, pair[3].high);
        if constexpr (Tile::kSplit)
          store_shared(high + g.streamed_bytes / 2, pair[0].low, pair[1].low, pair[2].low, pair[3].low);
      }
    }
    return magnitude < kTf32Max;
  }

  /// Four of the eight words (a, b), from word `by` modulo 4 on.
  static __device__ __forceinline__ float4 advance(float4 a, float4 b, int by) {
    if (by & 1) a = make_float4(a.y, a.z, a.w, b.x), b = make_float4(b.y, b.z, b.w, 0.0f);
    if (by & 2) a = make_float4(a.z, a.w, b.x, b.y);
    return a;
  }

  __device__ __forceinline__ void write_note(const Cursor& at, uint32_t note) const {
    const int columns = g.positions[2] - at.column_block * 8 * g.row_steps;
    const int lines = g.positions[1] - at.row_block * g.step_rows;
    const int step_column = (lane / 4 - step_line * g.row_steps) * 8 + lane % 4;
    const uint32_t near = __ballot_sync(~0u, step_line < lines && step_column < columns);
    const uint32_t far = __ballot_sync(~0u, step_line < lines && step_column + 4 < columns);
    if (lane != 0) return;
    int flat;
    gathered_line(at, 0, 0, flat);
    const bool ragged = columns < 8 * g.row_steps || lines < g.step_rows;
    store_shared(note, near, far, shift(g.gathered, first_gathered(at), flat, p.gathered_shift), ragged);
  }

  const DenseWeightParams& p;
  const DenseWeightGeometry& g;
  const Block& block;
  const Shared& shared;
  const int lane, warp, thread;
  int box_major;  ///< plane (warp 0) or line (warp 1) of the first box this lane fetches
  int line;       ///< of the four positions this thread converts
  int step_line;  ///< of the position that this lane's bit of a note stands for
};

/// What a consumer keeps of a stage's note.
struct Note {
  uint32_t address;
  uint32_t begin;   ///< word z of the note
  uint32_t ragged;  ///< word w
};

/// A warpgroup's share of a block: up to kTiles tiles of 64 rows, all columns.
template <class Tile>
struct Consumer {
  static constexpr int kSums = Tile::kWgmmaColumns / 2;
  const DenseWeightParams& p;
  const Block& block;
  int warpgroup, thread;
  /// Of this thread's two rows of each tile: byte offset in the gathered tile, and from bit 28 on the flat index modulo
  /// 4 of the line they lie in, relative to the stage's first.
  uint32_t row[Tile::kTiles][2];
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
        const int tap_z = tap / g.row_taps[1], tap_y = tap % g.row_taps[1], own = channel - block.first_channel;
        const int words = g.gathered.channel_word(own) + tap_z * g.tap_offset[0] + tap_y * g.tap_offset[1] +
                          tap_w * g.tap_offset[2] + thread % 4 * g.position_words;
        const int flat = own * static_cast<int>(g.gathered.plane & 3) +
                         (tap_z * g.dilation[0] * g.extent[1] + tap_y * g.dilation[1]) * g.extent[2];
        row[m][h] = active(m) ? static_cast<uint32_t>(words * 4) | static_cast<uint32_t>(flat & 3) << 28 : 0;
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

  /// Byte offset of a row whose stage begins `begin` (modulo 4) words into its box.
  static __device__ __forceinline__ uint32_t place(uint32_t row, uint32_t begin) {
    return (row & 0x0fffffffu) + ((row >> 28) + begin & 3) * 4;
  }
  __device__ __forceinline__ void load_step(float* value, uint32_t at, uint32_t near, uint32_t far) const {
    const uint32_t half = p.geometry.position_words * 16;
    value[0] = load_shared(at + near);
    value[1] = load_shared(at + far);
    value[2] = load_shared(at + half + near);
    value[3] = load_shared(at + half + far);
  }

  /// A fragments of `Steps` k8 steps. It clears positions beyond the end of a line, where the streamed operand is
  /// zero but the gathered one may hold an infinity of other positions.
  template <int Steps>
  __device__ __forceinline__ void load(float (&value)[Steps * 4], int m, uint32_t gathered, int first,
                                       const Note& note) const {
    const auto& g = p.geometry;
    if (g.lines_shift) {
#pragma unroll
      for (int u = 0; u < Steps; ++u) {
        const uint32_t begin = note.begin + g.step_shift[first + u];
        load_step(&value[u * 4], gathered + g.step_offset[first + u] * 4, place(row[m][0], begin),
                  place(row[m][1], begin));
      }
    } else {
      const uint32_t near = place(row[m][0], note.begin), far = place(row[m][1], note.begin);
#pragma unroll
      for (int u = 0; u < Steps; ++u) load_step(&value[u * 4], gathered + g.step_offset[first + u] * 4, near, far);
    }
    if (note.ragged == 0) return;
    const int2 exists = load_shared_pair(note.address);
    const uint32_t near = static_cast<uint32_t>(exists.x) >> (4 * first + thread % 4);
    const uint32_t far = static_cast<uint32_t>(exists.y) >> (4 * first + thread % 4);
#pragma unroll
    for (int i = 0; i < Steps * 4; ++i) value[i] = ((i % 4 < 2 ? near : far) >> (i / 4 * 4) & 1) != 0 ? value[i] : 0.0f;
  }

  /// B of k8 step `step`, half `h` of the columns.
  static __device__ __forceinline__ uint64_t descriptor(uint32_t streamed, int step, int h) {
    constexpr uint64_t kLeading = uint64_t{depth_pitch(Tile::kColumns) >> 4} << 16;
    constexpr uint64_t kStride = uint64_t{128 >> 4} << 32;
    const uint32_t address = streamed + step * 2 * depth_pitch(Tile::kColumns) + h * Tile::kWgmmaColumns * 16;
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

  /// Adds k8 steps [first, first + Steps) of a stage to the sums of every tile. Fragments are gathered for two steps at
  /// a time, while the tensor core still multiplies the two before.
  template <int Steps>
  __device__ __forceinline__ void multiply(uint32_t streamed, uint32_t gathered, int first, const Note& note) {
#pragma unroll
    for (int m = 0; m < Tile::kTiles; ++m) {
      if (!active(m)) continue;
      if constexpr (Tile::kSplit) {
        multiply_split<Steps>(m, streamed, gathered, first, note);
      } else {
        multiply_once<Steps>(m, streamed, gathered, first, note);
      }
    }
  }

  /// Three products, summed in `part` and then added to the sums.
  template <int Steps>
  __device__ __forceinline__ void multiply_split(int m, uint32_t streamed, uint32_t gathered, int first,
                                                 const Note& note) {
    constexpr int kPiece = Steps < 2 ? 1 : 2;
    const uint64_t low_part = static_cast<uint64_t>(p.geometry.streamed_bytes / 2) >> 4;
    uint32_t high[Steps / kPiece][kPiece * 4], low[Steps / kPiece][kPiece * 4];
#pragma unroll
    for (int h = 0; h < Tile::kHalves; ++h) {
      float part[kSums];
#pragma unroll
      for (int piece = 0; piece < Steps / kPiece; ++piece) {
        const int begin = first + piece * kPiece;
        if (h == 0) {
          float value[kPiece * 4];
          load<kPiece>(value, m, gathered, begin, note);
          split<kPiece, true>(value, high[piece], low[piece]);
        }
        wgmma_fence();
#pragma unroll
        for (int u = 0; u < kPiece; ++u) {
          const uint64_t b = descriptor(streamed, begin + u, h);
          wgmma_tf32(part, fragment(low[piece], u), b, piece > 0 || u > 0);
          wgmma_tf32(part, fragment(high[piece], u), b + low_part, 1);
          wgmma_tf32(part, fragment(high[piece], u), b, 1);
        }
        wgmma_commit();
      }
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kSums; ++i) sum[m][h][i] += part[i];
    }
  }

  /// One product, summed by the tensor core itself.
  template <int Steps>
  __device__ __forceinline__ void multiply_once(int m, uint32_t streamed, uint32_t gathered, int first,
                                                const Note& note) {
    constexpr int kPiece = Steps < 2 ? 1 : 2;
    uint32_t a[Steps / kPiece][kPiece * 4], unused[kPiece * 4];
#pragma unroll
    for (int piece = 0; piece < Steps / kPiece; ++piece) {
      const int begin = first + piece * kPiece;
      float value[kPiece * 4];
      load<kPiece>(value, m, gathered, begin, note);
      split<kPiece, false>(value, a[piece], unused);
      wgmma_fence();
#pragma unroll
      for (int h = 0; h < Tile::kHalves; ++h)
#pragma unroll
        for (int u = 0; u < kPiece; ++u)
          wgmma_tf32(sum[m][h], fragment(a[piece], u), descriptor(streamed, begin + u, h), 1);
      wgmma_commit();
    }
    wgmma_wait<0>();
  }

  __device__ __forceinline__ void multiply_stage(uint32_t streamed, uint32_t gathered, const Note& note) {
    const int steps = p.geometry.steps;
    int step = 0;
    for (; step + 4 <= steps; step += 4) multiply<4>(streamed, gathered, step, note);
    if ((steps & 2) != 0) {
      multiply<2>(streamed, gathered, step, note);
      step += 2;
    }
    if ((steps & 1) != 0) multiply<1>(streamed, gathered, step, note);
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
    const auto& g = p.geometry;
    Slot tile, gathered;
    int unflushed = 0;
    for (int stage = 0; stage < block.stages; ++stage) {
      barrier_wait(shared.full(tile.index), tile.parity);
      const uint32_t address = shared.note(tile.index);
      const int2 note = load_shared_pair(address + 8);
      multiply_stage(shared.streamed(tile.index), shared.gathered(gathered.index),
                     {address, static_cast<uint32_t>(note.x), static_cast<uint32_t>(note.y)});
      __syncwarp();
      if (thread % 32 == 0) barrier_arrive(shared.empty(tile.index));
      tile.next(g.tiles);
      gathered.next(g.tiles + g.ahead);
      if (++unflushed == g.flush_stages || stage + 1 == block.stages) {
        flush(stage >= g.flush_stages);
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
    for (int slot = 0; slot < kMaxStages; ++slot) {
      barrier_init(shared.fetched(slot), 1);
      barrier_init(shared.full(slot), 128);
      barrier_init(shared.empty(slot), kConsumers * 4);
    }
    barrier_init_fence();
  }
  fill_column_table(p.geometry, block, shared, Tile::kColumns);
  __syncthreads();
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
  if (warpgroup == kConsumers) {
    registers_decrease<Tile::kProducerRegisters>();
    Producer<Tile>(p, block, shared, thread).produce();
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
  const TensorMap x = plane_matrix_map(plan.geometry.gathered, gathered);
  const TensorMap y = plane_matrix_map(plan.geometry.streamed, streamed);
  const DenseWeightParams params{x.map, y.map, gathered, streamed, x.shift, y.shift, partial, plan.geometry};
  launch("dense_weight", dense_weight::accumulate<Tile>, dim3(static_cast<unsigned>(plan.blocks)), dim3(Tile::kThreads),
         plan.shared_bytes, stream, params);
}

}  // namespace halo::cuda::conv
