// The multiplying half of the dense weight gradient's kernel: gather, split, multiply, add up, flush.
#pragma once

#include "common.cuh"

namespace halo::cuda::conv::dense_weight {

/// What a consumer keeps of a stage's note.
struct Note {
  uint32_t begin;  ///< word z: byte in the ring, and words in the box
  bool ragged;     ///< of word w
  /// Words x and y, of this thread's own positions: bit 4u stands for step u.
  uint32_t near, far;
};

/// How a warpgroup comes to the positions of a stage: along a line, whose positions are neighbours or a stride apart,
/// or step by step where lines are shorter than a group of four steps.
enum class Walk { Neighbours, Strided, Found };

/// Tiles of the streamed operand from some k8 step on.
struct Streamed {
  uint64_t high;  ///< descriptor of the first step's high parts
  uint32_t low;   ///< bytes from there to the low ones
};

/// A warpgroup's share of a block: up to kTiles tiles of 64 rows, all columns.
template <class Tile>
struct Consumer {
  static constexpr int kElement = Tile::kElement, kMask = Tile::kGranule - 1;
  static constexpr int kSums = Tile::kWgmmaColumns / 2;
  const DenseWeightParams& p;
  const Block& block;
  int warpgroup, thread;
  uint32_t ring;  ///< bytes of the gathered lines
  /// Of this thread's two rows of each tile: byte offset from the stage's first line, and from bit 28 on the flat index
  /// modulo a granule of the line they lie in, relative to that one's.
  uint32_t row[Tile::kTiles][2];
  float sum[Tile::kTiles][Tile::kHalves][kSums];

  __device__ __forceinline__ Consumer(const DenseWeightParams& params, const Block& b, int wg, int t)
      : p(params), block(b), warpgroup(wg), thread(t) {
    const auto& g = p.geometry;
    ring = static_cast<uint32_t>(g.ring_lines * g.line_words_apart() * kElement);
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
        const int flat = own * static_cast<int>(g.gathered.plane & kMask) +
                         (tap_z * g.dilation[0] * g.extent[1] + tap_y * g.dilation[1]) * g.extent[2];
        row[m][h] = active(m) ? static_cast<uint32_t>(words * kElement) | static_cast<uint32_t>(flat & kMask) << 28 : 0;
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

  /// Byte offset in the ring of a row, `offset` bytes further on, in a line that begins `shift` words further into its
  /// box (modulo a granule) than the row's own in the stage's first step.
  __device__ __forceinline__ uint32_t place(uint32_t row, uint32_t begin, int offset, int shift) const {
    const uint32_t at = (row & 0x0fffffffu) + (begin & ~15u) + offset;
    return (at >= ring ? at - ring : at) + ((row >> 28) + begin + shift & kMask) * kElement;
  }
  template <Walk How>
  __device__ __forceinline__ int step_bytes() const {
    return 8 * kElement * (How == Walk::Neighbours ? 1 : p.geometry.position_words);
  }
  /// Where the rows of tile `m` read their first position of k8 step `step`.
  __device__ __forceinline__ void find(int m, uint32_t gathered, int step, const Note& note, uint32_t (&at)[2]) const {
    int offset = 0, shift = 0;
    if (step != 0) offset = p.geometry.step_offset[step] * kElement, shift = p.geometry.step_shift[step];
#pragma unroll
    for (int h = 0; h < 2; ++h) at[h] = gathered + place(row[m][h], note.begin, offset, shift);
  }
  static __device__ __forceinline__ void load_step(float* value, const uint32_t (&at)[2], uint32_t half) {
    using T = typename Tile::Type;
    value[0] = load_shared_element<T>(at[0]);
    value[1] = load_shared_element<T>(at[1]);
    value[2] = load_shared_element<T>(at[0] + half);
    value[3] = load_shared_element<T>(at[1] + half);
  }

  /// A fragments of `Steps` k8 steps from `first` on; `at`: where they begin, unless they are found one by one. Clears
  /// positions that do not exist, where the gathered operand may hold other ones.
  template <Walk How, int Steps>
  __device__ __forceinline__ void load(float (&value)[Steps * 4], int m, uint32_t gathered, const uint32_t (&at)[2],
                                       int first, const Note& note) const {
#pragma unroll
    for (int u = 0; u < Steps; ++u) {
      const uint32_t half = step_bytes<How>() / 2;
      uint32_t own[2] = {at[0] + u * 2 * half, at[1] + u * 2 * half};
      if constexpr (How == Walk::Found) find(m, gathered, first + u, note, own);
      load_step(&value[u * 4], own, half);
    }
    if (!note.ragged) return;
    const uint32_t near = note.near >> (4 * first), far = note.far >> (4 * first);
#pragma unroll
    for (int i = 0; i < Steps * 4; ++i) value[i] = ((i % 4 < 2 ? near : far) >> (i / 4 * 4) & 1) != 0 ? value[i] : 0.0f;
  }

  /// Descriptor of a tile: lines of 128 bytes, swizzled, eight a group.
  static __device__ __forceinline__ uint64_t descriptor(uint32_t tile) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroup = uint64_t{1024 >> 4} << 32, kUnused = uint64_t{1} << 16;
    return static_cast<uint64_t>(tile >> 4) | kSwizzle128 | kGroup | kUnused;
  }
  /// B of the step `step` steps on in the same line, half `h` of the columns.
  static __device__ __forceinline__ uint64_t step_of(uint64_t first, int step, int h) {
    return descriptor_after(first, step * 32 + h * Tile::kWgmmaColumns * 128);
  }

  template <int Steps, bool Split>
  static __device__ __forceinline__ void split(const float (&value)[Steps * 4], uint32_t (&high)[Steps * 4],
                                               uint32_t (&low)[Steps * 4]) {
#pragma unroll
    for (int i = 0; i < Steps * 4; ++i) {
      const Tf32Pair pair = to_tf32<Split>(value[i]);
      high[i] = pair.high;
      low[i] = pair.low;
    }
  }

  template <int Count>
  static __device__ __forceinline__ const uint32_t (&fragment(const uint32_t (&a)[Count], int step))[4] {
    return *reinterpret_cast<const uint32_t(*)[4]>(&a[step * 4]);
  }

  /// Adds k8 steps [first, first + Steps) of a stage to the sums of every tile. Fragments are gathered for two steps at
  /// a time, while the tensor core still multiplies the two before. `at`: as for load.
  template <Walk How, int Steps>
  __device__ __forceinline__ void multiply(const Streamed& streamed, uint32_t gathered,
                                           const uint32_t (&at)[Tile::kTiles][2], int first, const Note& note) {
    if constexpr (Tile::kSplit) {
#pragma unroll
      for (int m = 0; m < Tile::kTiles; ++m)
        if (active(m)) multiply_split<How, Steps>(m, streamed, gathered, at[m], first, note);
    } else if (active(Tile::kTiles - 1)) {
      multiply_once<How, Steps, Tile::kTiles>(streamed, gathered, at, first, note);
    } else if (active(0)) {
      multiply_once<How, Steps, 1>(streamed, gathered, at, first, note);
    }
  }

  /// Three products, summed in `part` and then added to the sums.
  template <Walk How, int Steps>
  __device__ __forceinline__ void multiply_split(int m, const Streamed& streamed, uint32_t gathered,
                                                 const uint32_t (&at)[2], int first, const Note& note) {
    constexpr int kPiece = Steps < 2 ? 1 : 2;
    uint32_t high[Steps / kPiece][kPiece * 4], low[Steps / kPiece][kPiece * 4];
#pragma unroll
    for (int h = 0; h < Tile::kHalves; ++h) {
      float part[kSums];
#pragma unroll
      for (int piece = 0; piece < Steps / kPiece; ++piece) {
        const int begin = first + piece * kPiece;
        if (h == 0) {
          float value[kPiece * 4];
          load<How, kPiece>(value, m, gathered,
                            {at[0] + piece * kPiece * step_bytes<How>(), at[1] + piece * kPiece * step_bytes<How>()},
                            begin, note);
          split<kPiece, true>(value, high[piece], low[piece]);
        }
        wgmma_fence();
#pragma unroll
        for (int u = 0; u < kPiece; ++u) {
          const uint64_t b = step_of(streamed.high, piece * kPiece + u, h);
          wgmma_tf32(part, fragment(low[piece], u), b, piece > 0 || u > 0);
          wgmma_tf32(part, fragment(high[piece], u), descriptor_after(b, streamed.low), 1);
          wgmma_tf32(part, fragment(high[piece], u), b, 1);
        }
        wgmma_commit();
      }
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kSums; ++i) sum[m][h][i] += part[i];
    }
  }

  /// One product, summed by the tensor core itself, for the first `Tiles` tiles in one go.
  template <Walk How, int Steps, int Tiles>
  __device__ __forceinline__ void multiply_once(const Streamed& streamed, uint32_t gathered,
                                                const uint32_t (&at)[Tile::kTiles][2], int first, const Note& note) {
    constexpr int kPiece = Steps < 2 ? 1 : 2, kPieces = Steps / kPiece;
    uint32_t a[Tiles][kPieces][kPiece * 4], unused[kPiece * 4];
#pragma unroll
    for (int m = 0; m < Tiles; ++m) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const int begin = first + piece * kPiece, bytes = piece * kPiece * step_bytes<How>();
        float value[kPiece * 4];
        load<How, kPiece>(value, m, gathered, {at[m][0] + bytes, at[m][1] + bytes}, begin, note);
        split<kPiece, false>(value, a[m][piece], unused);
        wgmma_pin(a[m][piece]);
        wgmma_fence();
#pragma unroll
        for (int h = 0; h < Tile::kHalves; ++h)
#pragma unroll
          for (int u = 0; u < kPiece; ++u)
            wgmma_tf32(sum[m][h], fragment(a[m][piece], u), step_of(streamed.high, piece * kPiece + u, h), 1);
        wgmma_commit();
      }
    }
    wgmma_wait<0>();
  }

  template <Walk How>
  __device__ __forceinline__ void multiply_stage(Streamed streamed, uint32_t gathered, const Note& note) {
    const auto& g = p.geometry;
    const int lines = How == Walk::Found ? 1 : g.step_rows, steps = How == Walk::Found ? g.steps : g.row_steps;
#pragma unroll 1
    for (int line = 0; line < lines; ++line) {
      const int end = (line + 1) * steps;
      int step = line * steps;
      uint32_t at[Tile::kTiles][2] = {};
      if constexpr (How != Walk::Found) {
#pragma unroll
        for (int m = 0; m < Tile::kTiles; ++m) find(m, gathered, step, note, at[m]);
      }
      const auto advance = [&](int by, int bytes) {
        step += by;
        streamed.high = descriptor_after(streamed.high, bytes);
#pragma unroll
        for (auto& tile_at : at)
          for (uint32_t& row_at : tile_at) row_at += by * step_bytes<How>();
      };
#pragma unroll 1
      while (step + 4 <= end) {
        multiply<How, 4>(streamed, gathered, at, step, note);
        advance(4, chunk_bytes(Tile::kColumns));
      }
      if constexpr (Tile::kFolded) continue;
      if ((steps & 2) != 0) {
        multiply<How, 2>(streamed, gathered, at, step, note);
        advance(2, 2 * 32);
      }
      if ((steps & 1) != 0) multiply<How, 1>(streamed, gathered, at, step, note);
    }
  }

  /// Moves the sums to the workspace: the first flush of a block writes, later ones add, each thread to its own
  /// elements.
  __device__ __forceinline__ void flush(bool add) {
    const auto& g = p.geometry;
    const int first_column = thread % 4 * 2;
    double* partial = p.partial + ((static_cast<int64_t>(block.split) * g.groups + block.group) * g.columns +
                                   block.first_column + first_column) *
                                      g.rows;
#pragma unroll
    for (int m = 0; m < Tile::kTiles; ++m) {
      if (!active(m)) continue;
      double* at = partial + first_row(m);
      const int rows = g.rows - first_row(m);
      int columns = block.columns - first_column;
#pragma unroll
      for (int h = 0; h < Tile::kHalves; ++h) {
#pragma unroll
        for (int first = 0; first < kSums; first += 4) {
          // Step by step: all addresses at once would take the main loop's registers.
          asm volatile("" : "+l"(at), "+r"(columns));
          double before[4];
          bool inside[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            inside[j] = j / 2 * 8 < rows && j % 2 < columns;
            before[j] = add && inside[j] ? at[j % 2 * int64_t{g.rows} + j / 2 * 8] : 0.0;
          }
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (inside[j])
              at[j % 2 * int64_t{g.rows} + j / 2 * 8] = before[j] + static_cast<double>(sum[m][h][first + j]);
          at += 8 * int64_t{g.rows};
          columns -= 8;
        }
      }
    }
    clear();
  }

  __device__ __forceinline__ void consume(const Shared& shared) {
    const auto& g = p.geometry;
    if constexpr (Tile::kFolded) {
      consume<Walk::Neighbours>(shared);
    } else if (!g.walks()) {
      consume<Walk::Found>(shared);
    } else if (g.position_words == 1) {
      consume<Walk::Neighbours>(shared);
    } else {
      consume<Walk::Strided>(shared);
    }
  }

  template <Walk How>
  __device__ __forceinline__ void consume(const Shared& shared) {
    const auto& g = p.geometry;
    Slot tile, high, emptied;
    for (int first = 0; first < block.stages; first += g.flush_stages) {
      const int end = min(first + g.flush_stages, block.stages);
#pragma unroll 1
      for (int stage = first; stage < end; ++stage) {
        barrier_wait(shared.full(tile.index), tile.parity);
        const uint32_t address = shared.note(tile.index);
        const int2 begin = load_shared_pair(address + 8);
        const uint32_t lead = static_cast<uint32_t>(begin.y) >> 1;
        Note note{static_cast<uint32_t>(begin.x), __any_sync(~0u, begin.y & 1) != 0, 0, 0};
        if (note.ragged) {
          const int2 exists = load_shared_pair(address);
          note.near = static_cast<uint32_t>(exists.x) >> thread % 4;
          note.far = static_cast<uint32_t>(exists.y) >> thread % 4;
        }
        // The same in all threads, which descriptors in uniform registers need to know.
        const uint32_t tiles = __shfl_sync(~0u, shared.high(high.index), 0);
        const uint32_t low = __shfl_sync(~0u, shared.low(tile.index), 0) - tiles;
        multiply_stage<How>({descriptor(tiles), low}, shared.gathered() + lead, note);
        __syncwarp();
        if (thread % 32 == 0) barrier_arrive(shared.empty(emptied.index));
        emptied.next(g.tiles + g.ahead);
        tile.next(g.tiles);
        high.next(g.high_slots);
      }
      flush(first > 0);
    }
  }
};

}  // namespace halo::cuda::conv::dense_weight
