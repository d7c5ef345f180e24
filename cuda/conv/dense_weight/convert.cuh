// The warps of the dense weight gradient's kernel that make fetched stages ready: they write the padding and turn the
// streamed operand into tiles of TF32 numbers, or of high and low parts.
#pragma once

#include "fetch.cuh"

namespace halo::cuda::conv::dense_weight {

/// Two warps, together at each stage or taking turns at them.
template <class Tile>
struct Converter : Loader<Tile> {
  using T = typename Tile::Type;
  using Base = Loader<Tile>;
  using Base::block, Base::first_gathered, Base::first_streamed, Base::g, Base::gathered_line, Base::kElement,
      Base::kGranule, Base::left_edge, Base::p, Base::shared, Base::shift, Base::streamed_line, Base::wrapped;
  const int threads, thread, turn;  ///< threads at a stage, this one among them, and which stages it takes
  const int width_log;              ///< of how many threads, a power of two, share a line of a column
  const int channels;               ///< streamed, of one folded tap
  int channels_log = 0;             ///< of the gathered channels, rounded up to a power of two: not above `threads`
  int step_line;                    ///< of the position that this lane's bit of a note stands for
  int first_line = 0;               ///< of the ring, of the stage at hand
  Cursor at;
  Slot tile, high, box, lines;
  Slot emptied;  ///< of the stage that had this tile before

  __device__ __forceinline__ Converter(const DenseWeightParams& params, const Block& b, const Shared& s, int t)
      : Base(params, b, s),
        threads(g.converters()),
        thread(g.turns ? t % 32 : t),
        turn(t / 32),
        width_log(log_of_width(g.row_steps)),
        channels(b.columns / g.fold_taps),
        at(g, b.first_stage) {
    step_line = thread / 4 / g.row_steps;
    while (1 << channels_log < min(b.channels, threads)) ++channels_log;
  }

  __device__ __forceinline__ void run() {
    for (int stage = 0; stage < block.stages; ++stage) {
      const int fresh = stage == 0 || at.row_block == 0 ? g.lines : g.fresh;
      if (stage != 0) first_line = wrapped(first_line + fresh);
      if (!g.turns || stage % 2 == turn) prepare(stage, fresh);
      if (stage >= g.tiles) emptied.next(g.tiles + g.ahead);
      at.next(g);
      tile.next(g.tiles);
      high.next(g.high_slots);
      box.next(g.box_slots());
      lines.next(g.tiles + g.ahead);
    }
  }

  /// Enough threads for two pieces of 16 bytes a step.
  static __device__ __forceinline__ int log_of_width(int row_steps) {
    if (row_steps <= 2) return row_steps;
    return row_steps <= 4 ? 3 : 4;
  }

  /// One stage, of whose gathered lines the last `fresh` are new.
  __device__ __forceinline__ void prepare(int stage, int fresh) const {
    if (stage >= g.tiles) barrier_wait(shared.empty(emptied.index), emptied.parity);
    if (thread < 32) write_note(shared.note(tile.index));
    barrier_wait(shared.lines_ready(lines.index), lines.parity);
    patch_gathered(fresh);
    barrier_wait(shared.boxes_ready(box.index), box.parity);
    if (g.direct) {
      finish(shared.high(high.index), shared.low(tile.index));
    } else {
      patch_streamed(box.index);
      convert(shared.raw(box.index), shared.high(high.index), shared.low(tile.index));
      barrier_arrive(shared.raw_empty(box.index));
    }
    fence_async_proxy();
    barrier_arrive(shared.full(tile.index));
  }

 private:
  /// Writes what the copy engine cannot: zeros left and right of a line where windows reach there, and channels beyond
  /// the last whole row of the plane matrix. Of the gathered lines, the last `lines` are new.
  __device__ __forceinline__ void patch_gathered(int fresh) const {
    const PlaneMatrix& m = g.gathered;
    const int x0 = left_edge(at);
    const int left = g.pad[2] > 0 ? min(max(-x0, 0), g.line_words) : 0;
    const int right = g.right_padding ? max(g.extent[2] - x0, 0) : g.line_words;
    const int first = first_gathered(at);
    if (left == 0 && right >= g.line_words && first + block.channels <= m.tail()) return;
    // As many threads a line as there are channels, rounded up to a power of two.
    const int lanes = 1 << channels_log;
    for (int row = thread >> channels_log; row < fresh * g.planes; row += threads >> channels_log) {
      const int own_line = row / g.planes, plane = row - own_line * g.planes, line = g.lines - fresh + own_line;
      int flat;
      const bool inside = gathered_line(at, plane, line, flat);
      const uint32_t stored =
          shared.gathered() + (wrapped(first_line + line) * g.planes + plane) * g.line_pitch * kElement;
      for (int channel = thread & (lanes - 1); channel < block.channels; channel += lanes) {
        const int begin = shift(m, first + channel, flat, p.gathered_shift), end = g.line_words - begin;
        const uint32_t to = stored + (m.channel_word(channel) + begin) * kElement;
        for (int w = 0; w < min(left, end); ++w) store_element<T>(to + w * kElement, 0);
        for (int w = right; w < end; ++w) store_element<T>(to + w * kElement, 0);
      }
    }
    const int tail = max(0, static_cast<int>(m.tail()) - first);  // the first of the block's channels
    copy_words(fresh * g.planes, block.channels - tail, g.line_words, [&](int row, int channel, int word) {
      const int line = g.lines - fresh + row / g.planes, plane = row % g.planes;
      int flat;
      const bool inside = gathered_line(at, plane, line, flat);
      channel += tail;
      const int begin = shift(m, first + channel, flat, p.gathered_shift), x = x0 + word;
      const uint32_t stored =
          shared.gathered() + (wrapped(first_line + line) * g.planes + plane) * g.line_pitch * kElement;
      return Word{begin + word < g.line_words ? stored + (m.channel_word(channel) + begin + word) * kElement : 0,
                  inside && x >= 0 && x < g.extent[2]
                      ? static_cast<const T*>(p.gathered) + (first + channel) * m.plane + flat + word
                      : nullptr};
    });
  }

  /// Where a word goes in shared memory, 0 where nowhere, and whence; else it is a zero.
  struct Word {
    uint32_t to;
    const T* from;
  };
  static __device__ __forceinline__ uint32_t bits_of(T value) {
    if constexpr (sizeof(T) == 4) {
      return __float_as_uint(value);
    } else {
      return value.bits;
    }
  }
  /// By all threads of the stage: several on their way at once, as each takes as long as a stage should.
  template <class F>
  __device__ __forceinline__ void copy_words(int rows, int channels, int words, const F& find) const {
    constexpr int kBatch = 8;
    const int row_words = channels * words;
    for (int first = thread; first < rows * row_words; first += threads * kBatch) {
      Word word[kBatch];
      uint32_t value[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int i = first + j * threads;
        word[j] = i < rows * row_words ? find(i / row_words, i % row_words / words, i % words) : Word{0, nullptr};
        value[j] = word[j].from != nullptr ? bits_of(*word[j].from) : 0;
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        if (word[j].to != 0) store_element<T>(word[j].to, value[j]);
    }
  }

  __device__ __forceinline__ void patch_streamed(int raw_slot) const {
    const PlaneMatrix& m = g.streamed;
    if (first_streamed(at) + channels <= m.tail()) return;
    const int w0 = at.column_block * g.row_steps * 8, first = first_streamed(at);
    const int tail = max(0, static_cast<int>(m.tail()) - first);  // the first of the block's channels
    copy_words(g.raw_lines(), channels - tail, m.box_words, [&](int row, int channel, int word) {
      channel += tail;
      const int64_t source = first + channel;
      int flat;
      const bool inside = streamed_line(at, row / g.fold_taps, row % g.fold_taps, flat);
      const int begin = shift(m, first + channel, flat, p.streamed_shift);
      const uint32_t to =
          shared.raw(raw_slot) + (row * m.period * m.box_pitch + m.channel_word(channel) + begin) * kElement;
      return Word{begin + word < m.box_words ? to + word * kElement : 0,
                  inside && w0 + word < g.streamed_extent[2]
                      ? static_cast<const T*>(p.streamed) + source * m.plane + flat + word
                      : nullptr};
    });
    // What is written here, other threads convert.
    if (g.turns) {
      __syncwarp();
    } else {
      barrier_sync(1, 64);
    }
  }

  /// Where the copy engine wrote the tile: rounds it to TF32 in place, or adds the low parts, cut off being the high
  /// ones.
  __device__ __forceinline__ void finish(uint32_t high, uint32_t low) const {
    constexpr int kPieces = Tile::kColumns / 8;  // of a thread, of 32 positions, where both warps share them
    constexpr int kBatch = kPieces % 4 == 0 ? 4 : kPieces % 3 == 0 ? 3 : kPieces;
    const int pieces = g.part_bytes / 16, step = threads * 16;
#pragma unroll 1
    for (int first = thread; first < pieces; first += threads * kBatch) {
      const uint32_t at = first * 16;
      float4 value[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) value[j] = load_shared_vector(high + at + j * step);
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const float4& v = value[j];
        store_shared((Tile::kSplit ? low : high) + at + j * step, finished(v.x), finished(v.y), finished(v.z),
                     finished(v.w));
      }
    }
  }
  static __device__ __forceinline__ uint32_t finished(float value) {
    if constexpr (Tile::kSplit) value -= __uint_as_float(__float_as_uint(value) & kTf32Mask);
    return round_tf32_by_cut(value);
  }

  /// Raw boxes to tiles of high and low parts. What a box holds beyond the end of a line comes along: those positions
  /// do not exist, and the gathered operand is zero there.
  __device__ __forceinline__ void convert(uint32_t raw, uint32_t high, uint32_t low) const {
    const PlaneMatrix& m = g.streamed;
    for (int line = 0; line < g.step_rows; ++line) {
      for (int tap = 0; tap < g.fold_taps; ++tap) {
        int flat;
        streamed_line(at, line, tap, flat);
        const int first_shift = shift(m, first_streamed(at), flat, p.streamed_shift);
        for (int residue = 0; residue < m.period; ++residue, raw += m.box_pitch * kElement) {
          const int begin = first_shift + residue * static_cast<int>(m.plane % kGranule) & kGranule - 1;
          const Columns columns{raw + begin / 4 * 4 * kElement, line * 2 * g.row_steps, tap * channels + residue,
                                (channels - residue + m.period - 1) >> m.period_log};
          switch (begin % 4) {
            case 0: convert<0>(columns, high, low); break;
            case 1: convert<1>(columns, high, low); break;
            case 2: convert<2>(columns, high, low); break;
            default: convert<3>(columns, high, low);
          }
        }
      }
    }
  }

  /// One line of the columns of one folded tap and one residue.
  struct Columns {
    uint32_t raw;       ///< where the first begins, less `Shift`
    int quad;           ///< of the tile, that the line's first four positions become
    int column, count;  ///< the first, and how many, `period` apart
  };

  /// A thread takes the same four positions of several columns, all of which begin `Shift` elements further on.
  template <int Shift>
  __device__ __forceinline__ void convert(const Columns& columns, uint32_t high, uint32_t low) const {
    constexpr int kBatch = Tile::kColumns % 3 == 0 ? 3 : 4;
    const int together = threads >> width_log, quad = thread & ((1 << width_log) - 1);
    if (quad >= 2 * g.row_steps) return;
    const int tile_quad = columns.quad + quad, last = columns.count - 1;
    const uint32_t from = columns.raw + quad * 4 * kElement, to = high + tile_quad / 8 * chunk_bytes(Tile::kColumns);
    const uint32_t low_part = low - high;
#pragma unroll 1
    for (int first = thread >> width_log; first <= last; first += together * kBatch) {
      float4 value[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        // The last again where there are no more.
        const uint32_t line = from + min(first + j * together, last) * g.streamed.box_words * kElement;
        value[j] = load_elements<T>(line);
        if constexpr (Shift != 0) value[j] = advance(value[j], load_elements<T>(line + 4 * kElement), Shift);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const uint32_t column = columns.column + g.streamed.period * min(first + j * together, last);
        const uint32_t at = to + column * 128 + (tile_quad ^ column) % 8 * 16;
        const float v[4] = {value[j].x, value[j].y, value[j].z, value[j].w};
        Tf32Pair pair[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) pair[i] = to_tf32<Tile::kSplit>(v[i]);
        store_shared(at, pair[0].high, pair[1].high, pair[2].high, pair[3].high);
        if constexpr (Tile::kSplit) store_shared(at + low_part, pair[0].low, pair[1].low, pair[2].low, pair[3].low);
      }
    }
  }

  /// Four of the eight words (a, b), from word `by` modulo 4 on.
  static __device__ __forceinline__ float4 advance(float4 a, float4 b, int by) {
    if (by & 1) a = make_float4(a.y, a.z, a.w, b.x), b = make_float4(b.y, b.z, b.w, 0.0f);
    if (by & 2) a = make_float4(a.z, a.w, b.x, b.y);
    return a;
  }

  __device__ __forceinline__ void write_note(uint32_t note) const {
    int before = 0;  // words that a direct tile holds before the first position
    if (g.lead != 0) {
      int flat;
      streamed_line(at, 0, 0, flat);
      before = shift(g.streamed, first_streamed(at), flat, p.streamed_shift);
    }
    const int first = before - at.column_block * 8 * g.row_steps, end = g.positions[2] + first;
    const int lines = g.positions[1] - at.row_block * g.step_rows;
    const bool ragged = first > 0 || end < 8 * g.row_steps || lines < g.step_rows;
    uint32_t near = 0, far = 0;  // looked at where some position does not exist
    if (ragged) {
      const int step_column = (thread / 4 - step_line * g.row_steps) * 8 + thread % 4;
      const auto exists = [&](int column) { return step_line < lines && column >= first && column < end; };
      near = __ballot_sync(~0u, exists(step_column));
      far = __ballot_sync(~0u, exists(step_column + 4));
    }
    if (thread != 0) return;
    int flat;
    gathered_line(at, 0, 0, flat);
    const int begin = shift(g.gathered, first_gathered(at), flat, p.gathered_shift);
    store_shared(note, near, far, first_line * g.line_words_apart() * kElement + begin,
                 (g.lead - before) * g.position_words * 8 + ragged);
  }
};

}  // namespace halo::cuda::conv::dense_weight
