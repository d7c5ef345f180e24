// The loading half of the dense weight gradient's kernel: one warpgroup keeps the copy engine busy and turns the
// streamed operand into wgmma's layout.
#pragma once

#include "dense_weight_common.cuh"

namespace halo::cuda::conv::dense_weight {

/// The loading warpgroup. Each stage costs it little arithmetic: what does not change is computed by the constructor.
template <class Tile>
class Producer {
 public:
  __device__ __forceinline__ Producer(const DenseWeightParams& params, const Block& b, const Shared& s, int t)
      : p(params), g(params.geometry), block(b), shared(s), thread(t) {
    line = thread % 16 / (2 * g.row_steps);
    const int lane = thread % 32;
    box_major =
        thread / 32 == 0 ? (lane >> g.gathered.period / 2) / g.lines : (lane >> g.streamed.period / 2) / g.fold_taps;
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
      if (thread / 32 == 3) write_note(at, shared.note(tile.index));
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
    const int lane = thread % 32, warp = thread / 32;
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
#pragma unroll 1
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
    const int lane = thread % 32;
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
  const int thread;
  int box_major;  ///< plane (warp 0) or line (warp 1) of the first box this lane fetches
  int line;       ///< of the four positions this thread converts
  int step_line;  ///< of the position that this lane's bit of a note stands for
};

}  // namespace halo::cuda::conv::dense_weight
