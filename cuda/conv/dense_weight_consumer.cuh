// The multiplying half of the dense weight gradient's kernel: gather, split, multiply, add up, flush.
#pragma once

#include <type_traits>

#include "dense_weight_common.cuh"

namespace halo::cuda::conv::dense_weight {

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

}  // namespace halo::cuda::conv::dense_weight
