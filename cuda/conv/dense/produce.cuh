// The copying half of the dense engine's kernel (see kernel.cuh): halos and weights into shared memory.
#pragma once

#include "block.cuh"

namespace halo::cuda::conv {

/// The part of an item's halo that one thread copies: every kFillThreads-th piece of `Words` words of each channel.
/// Halo pitches equal the source's modulo `Words`, so that with halo_shift every piece is aligned on both sides. A
/// piece belongs to the row of its last word; the gap between rows keeps it from holding words of two that are read.
template <class Traits, int Words>
struct HaloFiller {
  using T = typename Traits::Type;
  static constexpr int kElement = Traits::kElement, kPiece = Words * kElement;  // bytes

  const DenseParams& p;
  int* const entries;  ///< shared: where each piece comes from; own pieces only
  const int thread;

  __host__ __device__ int pieces() const { return p.halo_words / Words; }

  __host__ __device__ void locate(const DenseItem& item) const {
    const int shift = static_cast<int>(halo_shift(p, item));
    const int origin[3] = {source_at(p, item, 0), source_at(p, item, 1), source_at(p, item, 2)};
    for (int piece = thread; piece < pieces(); piece += Traits::kFillThreads) {
      uint32_t last_w, h;
      const uint32_t row = p.by_halo_pitch.divide(static_cast<uint32_t>(piece * Words + Words - 1 - shift), last_w);
      const uint32_t d = p.by_halo_height.divide(row, h);
      const int i0 = origin[0] + static_cast<int>(d) * p.fill_step[0];
      const int i1 = origin[1] + static_cast<int>(h) * p.fill_step[1];
      const int i2 = origin[2] + (static_cast<int>(last_w) - (Words - 1)) * p.fill_step[2];
      const bool row_exists = i0 >= 0 && i0 < p.source_extent[0] && i1 >= 0 && i1 < p.source_extent[1];
      const int start = (i0 * p.source_extent[1] + i1) * p.source_extent[2] + i2;
      entries[piece] = encode(start, i2, row_exists);
    }
  }

  // An entry: the word offset of the piece, or -1 where it is padding. Four words: (offset / 4) * 8 + how many of them
  // exist, from the first; kSecondHalf where only the last two do.
  static constexpr int kSecondHalf = 5;
  __host__ __device__ int encode(int start, int i2, bool row_exists) const {
    const int exist = p.source_extent[2] - i2;
    if constexpr (Words != 4) {
      return row_exists && i2 >= 0 && exist > 0 ? start : -1;
    } else {
      const int code = !row_exists || i2 <= -4 ? 0 : i2 < 0 ? kSecondHalf : min(max(exist, 0), 4);
      return start / 4 * 8 + code;
    }
  }

  struct Piece {
    int offset;  ///< words
    int bytes;   ///< that exist; negative: of the second half
  };
  static __host__ __device__ Piece decode(int entry) {
    if constexpr (Words != 4) {
      return {max(entry, 0), entry < 0 ? 0 : kPiece};
    } else {
      const int code = entry & 7, start = (entry >> 3) * 4;
      if (code == kSecondHalf) return {start + 2, -2 * kElement};
      return {code == 0 ? 0 : start, code * kElement};
    }
  }

  static __device__ __forceinline__ void start_copy(uint32_t to, const T* from, int bytes) {
    if constexpr (Words == 4) {
      if (bytes < 0) {
        device::copy_async<kPiece / 2>(to, from, 0);
        device::copy_async<kPiece / 2>(to + kPiece / 2, from, kPiece / 2);
        return;
      }
    }
    device::copy_async<kPiece>(to, from, bytes);
  }

  /// Starts the copies of `real` channels from `base` on to `stage`; the chunk's other channels become zero.
  __device__ void copy(uint32_t stage, const T* base, int real) const {
    int piece = thread;
    if (real >= p.chunk_channels && p.chunk_channels % 4 == 0) {
      for (; piece < pieces(); piece += Traits::kFillThreads) copy_channels(piece, stage, base);
      return;
    }
    for (; piece + 3 * Traits::kFillThreads < pieces(); piece += 4 * Traits::kFillThreads) {
      copy_pieces<4>(piece, stage, base, real);
    }
    for (; piece < pieces(); piece += Traits::kFillThreads) copy_pieces<1>(piece, stage, base, real);
  }

  /// One piece of all channels, four at a time: a copy is five instructions, since few warps must start many copies.
  __device__ __forceinline__ void copy_channels(int piece, uint32_t stage, const T* base) const {
    const Piece source = decode(entries[piece]);
    const uint32_t pitch = static_cast<uint32_t>(p.plane_pitch * kElement),
                   skew = static_cast<uint32_t>(p.plane_skew * kElement);
    const T* from = base + source.offset;
    uint32_t to = stage + static_cast<uint32_t>(piece) * kPiece;
    const bool halved = Words == 4 && source.bytes < 0;
#pragma unroll 1
    for (int c = 0; c < p.chunk_channels; c += 4) {
      if (!halved) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t at = to + static_cast<uint32_t>(i) * pitch + static_cast<uint32_t>(i / 2) * skew;
          device::copy_async<kPiece>(at, from + i * p.source_plane, source.bytes);
        }
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          start_copy(to + static_cast<uint32_t>(i) * pitch + static_cast<uint32_t>(i / 2) * skew,
                     from + i * p.source_plane, source.bytes);
        }
      }
      from += 4 * p.source_plane;
      to += 4 * pitch;
    }
  }

  /// The same `Batch` pieces of every channel: several at a time, so that their address arithmetic overlaps.
  template <int Batch>
  __device__ __forceinline__ void copy_pieces(int piece, uint32_t stage, const T* base, int real) const {
    const T* from[Batch];
    int bytes[Batch];
#pragma unroll
    for (int i = 0; i < Batch; ++i) {
      const Piece source = decode(entries[piece + i * Traits::kFillThreads]);
      from[i] = base + source.offset;
      bytes[i] = source.bytes;
    }
    uint32_t to = stage + static_cast<uint32_t>(piece) * kPiece;
    int c = 0;
    for (; c < min(real, p.chunk_channels); ++c) {
#pragma unroll
      for (int i = 0; i < Batch; ++i) {
        start_copy(to + i * Traits::kFillThreads * kPiece, from[i], bytes[i]);
        from[i] += p.source_plane;
      }
      to += plane_stride(c);
    }
    for (; c < p.chunk_channels; ++c) {
#pragma unroll
      for (int i = 0; i < Batch; ++i) {
        device::copy_async<kPiece>(to + i * Traits::kFillThreads * kPiece, base, 0);
      }
      to += plane_stride(c);
    }
  }

  /// Bytes from channel `c` of a stage to the next.
  __device__ __forceinline__ uint32_t plane_stride(int c) const {
    return static_cast<uint32_t>((plane_word(p, c + 1) - plane_word(p, c)) * kElement);
  }
};

/// One lane: halo tiles of every item of this block as boxes.
template <class Traits>
__device__ void fetch_halos(const DenseParams& p, const DenseShared& s, const CUtensorMap& map) {
  RingCursor cursor;
  for (DenseWalk<Traits> at(p); at.more(p); at.next(p)) {
    const DenseItem item = at.item(p);
    const int group = static_cast<int>(item.n * p.groups.divisor + item.group);
    int corner[5] = {source_at(p, item, 2) - static_cast<int>(halo_shift(p, item)), source_at(p, item, 1),
                     source_at(p, item, 0), 0, group};
    for (int chunk = item.first_chunk; chunk < item.end_chunk; ++chunk, cursor.advance(p.halo_stages)) {
      corner[3] = chunk * p.chunk_channels;
      const uint32_t full = s.halo_full(p, cursor.stage);
      device::barrier_wait(s.halo_empty(p, cursor.stage), cursor.parity ^ 1);
      device::barrier_expect(full, static_cast<uint32_t>(p.plane_pitch * p.chunk_channels) * 4);
      device::copy_box(s.halo + static_cast<uint32_t>(cursor.stage * p.halo_stage_words) * 4, &map, corner, full);
    }
  }
}

/// Warps 0..2 of the copying warpgroup: halo tiles of every item of this block.
template <class Traits, int Words>
__device__ void fill_halos(const DenseParams& p, const DenseShared& s, int* entries, int thread) {
  const HaloFiller<Traits, Words> filler{p, entries, thread};
  RingCursor cursor;
  for (DenseWalk<Traits> at(p); at.more(p); at.next(p)) {
    const DenseItem item = at.item(p);
    filler.locate(item);
    const int64_t first_channel = (int64_t{item.n} * p.groups.divisor + item.group) * p.channels;
    for (int chunk = item.first_chunk; chunk < item.end_chunk; ++chunk, cursor.advance(p.halo_stages)) {
      const int channel = chunk * p.chunk_channels;
      device::barrier_wait(s.halo_empty(p, cursor.stage), cursor.parity ^ 1);
      filler.copy(s.halo + static_cast<uint32_t>(cursor.stage * p.halo_stage_words * Traits::kElement),
                  static_cast<const typename Traits::Type*>(p.source) + (first_channel + channel) * p.source_plane,
                  p.channels - channel);
      device::copy_async_arrive(s.halo_full(p, cursor.stage));
    }
  }
  device::copy_async_commit();
  device::copy_async_wait<0>();
}

/// Warp 3, one lane: weights, a stage at a time.
template <class Traits>
__device__ void fetch_weights(const DenseParams& p, const DenseShared& s) {
  device::wait_for_previous_grid();
  RingCursor cursor;
  constexpr uint32_t kBytes = Traits::kStageFloats * 4;
  const uint32_t rank = blockIdx.x & static_cast<uint32_t>(p.pair);
  const auto fetch = [&](const float* from) {
    const uint32_t to = s.weights + static_cast<uint32_t>(cursor.stage) * kBytes, full = s.weights_full(cursor.stage);
    device::barrier_expect(full, kBytes);
    if (!Traits::kPairs || p.pair == 0) {
      device::copy_bulk(to, from, kBytes, full);
    } else {  // each block brings one half to both
      device::copy_bulk_to_pair(to + rank * (kBytes / 2), from + rank * (Traits::kStageFloats / 2), kBytes / 2, full);
    }
    cursor.advance(p.weight_stages);
  };
  if (p.resident) {
    for (int i = 0; i < p.weight_stages; ++i) fetch(p.weights + i * Traits::kStageFloats);
    return;
  }
  for (DenseWalk<Traits> at(p); at.more(p); at.next(p)) {
    const DenseItem item = at.item(p);
    const float* from = p.weights + item.first_weight(p, Traits::kStageFloats);
    const int stages = item.stages(p);
    for (int i = 0; i < stages; ++i) {
      device::barrier_wait(s.weights_empty(cursor.stage), cursor.parity ^ 1);
      fetch(from + int64_t{i} * Traits::kStageFloats);
    }
  }
}

}  // namespace halo::cuda::conv
