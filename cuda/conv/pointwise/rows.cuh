// Kernels of one tap whose planes begin at any address (`Ragged`).
//
// Source channels come as runs of memory; in the stage each begins as many bytes behind a granule as in memory, and a
// lane reads words. Results are laid out likewise, those of a tile behind what is left of the tile before: three warps
// write whole lines of each channel, keep what is behind the last one, and write elements only where a run of tiles
// begins and ends.
#pragma once

#include "../../device/shared_words.cuh"
#include "../granule_rows.cuh"
#include "operands.cuh"

namespace halo::cuda::conv::pointwise {

inline constexpr int kStoringWarps = 3;

using device::load_shared_word;

__device__ __forceinline__ uint4 load_granule(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from));
  return v;
}
/// Bytes by which the tiles of a channel begin behind a granule.
template <class T>
__device__ __forceinline__ uint32_t lead_of_channel(const T* tensor, const Plan& plan, int image, int channels,
                                                    int channel) {
  const uint32_t planes =
      static_cast<uint32_t>(image) * static_cast<uint32_t>(channels) + static_cast<uint32_t>(channel);
  const uint32_t elements = planes * static_cast<uint32_t>(plan.plane) - static_cast<uint32_t>(plan.shift);
  return (static_cast<uint32_t>(reinterpret_cast<uintptr_t>(tensor)) + elements * uint32_t{sizeof(T)}) %
         device::kGranule;
}

/// By a whole warp, a lane a channel.
template <class T>
__device__ __forceinline__ void bring_rows(const Plan& plan, const Arguments<T>& arguments, const Layout<true>& s,
                                           int lane) {
  Cursor cursor;
  const T* const source = arguments.tensors.source;
  const int64_t images = static_cast<int64_t>(plan.items / plan.tiles.divisor);
  const T* const end = source + images * plan.source_channels * plan.plane;
  const int length = plan.boxes() * 128 / static_cast<int>(sizeof(T));
  for (Walk<true> at; at.find(plan); at.next()) {
    const int begin = at.tile * length - plan.shift, first = max(begin, 0);
    const uint32_t bytes = static_cast<uint32_t>(min(begin + length, plan.plane) - first) * uint32_t{sizeof(T)};
    for (int chunk = 0; chunk < plan.chunks; ++chunk, cursor.next(plan.stages)) {
      const int channel = chunk * kChunk + lane;
      const T* const from = source + (int64_t{at.image} * plan.source_channels + channel) * plan.plane + first;
      device::barrier_wait(s.empty + cursor.stage * 8, cursor.parity ^ 1);
      start_runs(s.full + cursor.stage * 8, from, channel < plan.source_channels ? bytes : 0,
                 s.stages + cursor.stage * s.stage_bytes + lane * plan.source_pitch, from, end, lane);
    }
  }
}

/// How a lane's channels lie in rows of shared memory. They are eight apart, so that those of the same e begin at the
/// same place of a granule.
template <class T>
struct RowPieces {
  uint32_t offset[2];  ///< of the first word, with the row's
  bool odd[2];         ///< half types: the first element is the word's second
  bool whole;          ///< they begin at granules, all lanes' channels

  __device__ __forceinline__ RowPieces(const Plan& plan, const T* tensor, int image, int channels, int pitch,
                                       int lane) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int own = channel_of_lane<T, true>(lane % 4, e);
      const uint32_t lead = lead_of_channel(tensor, plan, image, channels, own);
      offset[e] = static_cast<uint32_t>(own * pitch + lane / 4 * device::kGranule) + lead / 4 * 4;
      odd[e] = lead % 4 != 0;
      whole = plan.same_leads && lead == 0;
    }
  }
};

/// 16 bytes of the lane's channels of a chunk, zeros for all but the first `channels` of it.
template <class T>
__device__ __forceinline__ void load_rows(uint32_t (&raw)[4][2][4], uint32_t box, const RowPieces<T>& pieces, int pitch,
                                          int channels, int lane) {
  const auto from = [&](int j) { return box + pieces.offset[j % 2] + j / 2 * 8 * pitch; };
  if (pieces.whole) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      uint32_t(&to)[4] = raw[j / 2][j % 2];
      const uint4 four = load_granule(from(j));
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
    }
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      uint32_t(&to)[4] = raw[j / 2][j % 2];
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = load_shared_word(from(j) + 4 * i);
      if constexpr (sizeof(T) == 2) {
        const uint32_t behind = load_shared_word(from(j) + 16), selector = pieces.odd[j % 2] ? 0x5432 : 0x3210;
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i] = __byte_perm(to[i], i < 3 ? to[i + 1] : behind, selector);
      }
    }
  }
  if (channels >= kChunk) return;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    if (i / 8 * 8 + channel_of_lane<T, true>(lane % 4, i / 4 % 2) >= channels) raw[i / 8][i / 4 % 2][i % 4] = 0;
  }
}

/// Zeros for those of a lane's positions, from `first`, that are not in the plane: they are of whatever the stage had.
template <class T, bool Split>
__device__ __forceinline__ void clear_outside(float (&sum)[Fragments<T, Split>::kTiles][32], int first, int plane) {
  if (first >= 0 && first + 16 / int{sizeof(T)} <= plane) return;
#pragma unroll
  for (int i = 0; i < Fragments<T, Split>::kTiles * 32; ++i) {
    if (static_cast<unsigned>(first + i / 32 * 2 + i / 2 % 2) >= static_cast<unsigned>(plane)) sum[i / 32][i % 32] = 0;
  }
}

/// A warp's results into rows; `stage`: where row 0 has the warp's first word if its channel begins at a granule.
template <class T, bool Split>
__device__ __forceinline__ void stage_rows(const float (&sum)[Fragments<T, Split>::kTiles][32], uint32_t stage,
                                           const RowPieces<T>& pieces, int pitch) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t to = stage + pieces.offset[e] + j * 8 * pitch;
      uint32_t word[4];
      words_of<T, Split>(word, sum, j, e);
      if (pieces.whole) {
        device::store_shared(to, word[0], word[1], word[2], word[3]);
      } else if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int k = 0; k < 4; ++k) device::store_shared(to + 4 * k, word[k]);
      } else {
        // Of an odd row the first and the last element share words with others.
        const uint32_t selector = pieces.odd[e] ? 0x5432 : 0x7654;
        if (pieces.odd[e]) {
          device::store_shared_half(to + 2, word[0]);
          device::store_shared_half(to + 16, word[3] >> 16);
        } else {
          device::store_shared(to, word[0]);
        }
#pragma unroll
        for (int k = 1; k < 4; ++k) device::store_shared(to + 4 * k, __byte_perm(word[k - 1], word[k], selector));
      }
    }
  }
}

/// Where a channel's results go, in whole lines of memory, in a table in shared memory.
struct ResultLine {
  uint64_t line;  ///< address of the first line of a run of tiles
  uint32_t from;  ///< the place of that in shared memory
  uint32_t row;   ///< the channel's place there
  int behind;     ///< bytes of the line that lie before the run

  __device__ __forceinline__ explicit ResultLine(uint32_t entry) {
    const uint4 v = load_granule(entry);
    line = v.x | static_cast<uint64_t>(v.y) << 32;
    from = v.z;
    row = v.w / kLine;
    behind = static_cast<int>(v.w % kLine);
  }
  /// `start`: the run's first result.
  __device__ static __forceinline__ void write(uint32_t entry, const void* start, uint32_t row) {
    const auto address = reinterpret_cast<uint64_t>(start);
    const uint32_t behind = static_cast<uint32_t>(address) % kLine;
    const uint64_t line = address - behind;
    device::store_shared(entry, static_cast<uint32_t>(line), static_cast<uint32_t>(line >> 32),
                         row + kLine + behind % device::kGranule - behind, row * kLine + behind);
  }
};

/// Of the bytes [lo, hi) behind a line those that are not whole granules.
template <class T>
__device__ __forceinline__ void store_ends(uint64_t line, uint32_t from, int lo, int hi) {
  constexpr int kSize = sizeof(T), kMask = device::kGranule - 1;
  const int whole = (lo + kMask) & ~kMask;
  const auto copy = [&](int first, int end) {
#pragma unroll 1
    for (int i = first; i < end; i += kSize)
      *reinterpret_cast<T*>(line + i) = *shared_element<T>(from + static_cast<uint32_t>(i));
  };
  copy(lo, min(whole, hi));
  copy(max(whole, hi & ~kMask), hi);
}

__device__ __forceinline__ void store_granule(uint64_t to, const uint4& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

inline constexpr int kRowsAtOnce = 4;

/// What of a tile's lines is written, in bytes behind a channel's first line.
struct TilePart {
  bool begins, ends;  ///< the run
  int before, count;  ///< positions that do not exist, and to the end of those that do
  int tile_bytes;

  __device__ __forceinline__ int low(const ResultLine& line) const { return begins ? line.behind + before : 0; }
  __device__ __forceinline__ int high(const ResultLine& line) const { return ends ? line.behind + count : tile_bytes; }
};

/// A tile's lines of the channels of table entries [entry, end), kRowsAtOnce together; what is behind the last line is
/// kept for the next tile. `offset`: of the tile from its run's first line. Outer: tiles that begin or end a run.
template <bool Outer>
__device__ __forceinline__ void store_lines(const TilePart& part, uint32_t entry, uint32_t end, uint32_t offset,
                                            int lane) {
  const int byte = lane * device::kGranule, kept_byte = byte % 256;
  const int last = part.tile_bytes + (Outer && part.ends ? kLine : 0);
  for (; entry < end; entry += kRowsAtOnce * 16) {
#pragma unroll 1
    for (int at = byte; at < last; at += 32 * device::kGranule) {
      uint64_t to[kRowsAtOnce];
      uint32_t from[kRowsAtOnce];
      uint4 values[kRowsAtOnce];
      bool whole[kRowsAtOnce];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const ResultLine line(entry + i * 16);
        to[i] = line.line + (offset + static_cast<uint32_t>(at));
        from[i] = line.from + static_cast<uint32_t>(at);
        whole[i] = !Outer || (at >= part.low(line) && at + device::kGranule <= part.high(line));
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) values[i] = load_granule(from[i]);
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        if (whole[i]) store_granule(to[i], values[i]);
      }
    }
    __syncwarp();
    if ((!Outer || !part.ends) && kept_byte < kLine + device::kGranule) {  // half of a warp a row
      uint4 kept[kRowsAtOnce / 2];
      uint32_t row[kRowsAtOnce / 2];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce / 2; ++i) {
        row[i] = load_shared_word(entry + (2 * i + lane / 16) * 16 + 12) / kLine + static_cast<uint32_t>(kept_byte);
        kept[i] = load_granule(row[i] + static_cast<uint32_t>(part.tile_bytes));
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce / 2; ++i)
        device::store_shared(row[i], kept[i].x, kept[i].y, kept[i].z, kept[i].w);
    }
    __syncwarp();
  }
}

/// The storing warps: a third of the channels each.
template <class T>
__device__ __forceinline__ void store_tiles(const Plan& plan, const Arguments<T>& arguments, const Layout<true>& s,
                                            int first, int warp, int lane) {
  constexpr int kSize = sizeof(T);
  const int rows = min(plan.column_groups * kColumns, plan.result_channels - first);
  const int each = (rows + kStoringWarps - 1) / kStoringWarps, own = warp * each, count = min(each, rows - own);
  const int tile_bytes = plan.boxes() * 128, length = tile_bytes / kSize;
  // The table has the last channel again instead of those behind it.
  const int entries = (each + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;
  const uint32_t entry = s.lines + static_cast<uint32_t>(warp * entries * 16);
  uint32_t parity = 0;
  uint32_t offset = 0;
  for (Walk<true> at; at.find(plan); at.next(), parity ^= 1, offset += tile_bytes) {
    const int begin = at.tile * length - plan.shift;
    if (at.begins && count > 0) {
      offset = 0;
      const T* const to =
          arguments.tensors.result + (int64_t{at.image} * plan.result_channels + first + own) * plan.plane + begin;
      for (int i = lane; i < entries; i += 32) {
        const int row = min(i, count - 1);
        ResultLine::write(entry + i * 16, to + int64_t{row} * plan.plane,
                          s.results + static_cast<uint32_t>((own + row) * plan.result_pitch));
      }
      __syncwarp();
    }
    device::barrier_wait(s.staged, parity);
    const TilePart part{at.begins, at.ends, max(-begin, 0) * kSize, min(length, plan.plane - begin) * kSize,
                        tile_bytes};
    // Whole batches, but none of repeated channels alone: those have been moved.
    const uint32_t end = entry + (max(count, 0) + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce * 16;
    if (at.begins || at.ends) {
      for (int i = lane; i < count; i += 32) {
        const ResultLine line(entry + i * 16);
        store_ends<T>(line.line + offset, line.from, part.low(line), part.high(line));
      }
      __syncwarp();
      store_lines<true>(part, entry, end, offset, lane);
    } else {
      store_lines<false>(part, entry, end, offset, lane);
    }
    __syncwarp();
    if (lane == 0) device::barrier_arrive(s.stored);
  }
}

}  // namespace halo::cuda::conv::pointwise
