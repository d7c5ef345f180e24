// 16-byte access to rows of any alignment.
//
// A row of an odd width starts at a different offset from a 16-byte boundary than the row before it. RowWindow loads
// the aligned vectors that cover a span and shifts the span out of them in registers, so loads are 16 bytes wide
// whatever the alignment. RowStore writes one vector a lane, through a transpose in shared memory where rows are not
// aligned.
#pragma once

#include <cstdint>

#include "number.cuh"
#include "row_access.h"

namespace halo::cuda::device {

/// The vector at `address` (16-byte aligned), of which only elements inside `extent` are read; the others are zero.
template <class T>
__device__ inline uint4 load_vector_inside(const T* address, Extent<T> extent) {
  constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
  uint32_t words[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    words[w] = 0;
#pragma unroll
    for (int e = 0; e < kPerWord; ++e) {
      const T* at = address + w * kPerWord + e;
      if (at < extent.begin || at >= extent.end) continue;
      if constexpr (sizeof(T) == 4) {
        words[w] = __float_as_uint(__ldg(at));
      } else {
        words[w] |= uint32_t{__ldg(&at->bits)} << (16 * e);
      }
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

/// N consecutive elements of a row whose valid columns are [0, width), zero outside.
/// T is 2 or 4 bytes wide. Load and unpack are apart so that several windows can be in flight.
template <class T, int N>
struct RowWindow {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4);
  static constexpr int kSize = static_cast<int>(sizeof(T));
  static constexpr int kPerWord = 4 / kSize;
  static constexpr int kWords = (N + kPerWord - 1) / kPerWord;
  static constexpr int kLoads = (N * kSize + 2 * kVectorBytes - kSize - 1) / kVectorBytes;  // at the worst shift

  uint4 raw[kLoads];
  int shift;  ///< bytes from the first aligned vector to element 0

  /// `start` is the address of column `first`, which may lie outside the row. Guarded: the aligned vectors may reach
  /// outside `extent`.
  template <bool Guarded>
  __device__ __forceinline__ void load(const T* start, int first, int width, bool row_exists, Extent<T> extent) {
    constexpr int V = kVectorWidth<T>;
    const uintptr_t address = reinterpret_cast<uintptr_t>(start);
    shift = static_cast<int>(address % kVectorBytes);
    const T* aligned = reinterpret_cast<const T*>(address - static_cast<uintptr_t>(shift));
    const int column = first - shift / kSize + V - 1;  // of the last element of the first vector
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const bool touches_row = static_cast<unsigned>(column + j * V) < static_cast<unsigned>(width + V - 1);
      const bool touches_span = (j + 1) * kVectorBytes <= N * kSize || j * kVectorBytes < shift + N * kSize;
      raw[j] = {0, 0, 0, 0};
      if (row_exists && touches_row && touches_span) {
        raw[j] = Guarded ? load_vector_inside(aligned + j * V, extent)
                         : __ldg(reinterpret_cast<const uint4*>(aligned + j * V));
      }
    }
  }

  __device__ __forceinline__ void unpack(int first, int width, const RowAlignment& rows, float (&out)[N]) const {
    uint32_t words[4 * kLoads + 1];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      words[4 * j] = raw[j].x;
      words[4 * j + 1] = raw[j].y;
      words[4 * j + 2] = raw[j].z;
      words[4 * j + 3] = raw[j].w;
    }
    words[4 * kLoads] = 0;
    // Long windows skip the shift where no row needs it; for short ones a branch costs more than it saves.
    if (kWords <= 6 || rows.shift_bits != 0) {
      shift_words<2>(words, (shift & 8) != 0);
      shift_words<1>(words, (shift & 4) != 0);
      if constexpr (kSize == 2) {
        const int bits = shift % 4 * 8;
#pragma unroll
        for (int i = 0; i < kWords; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], bits);
      }
    }
    float wide[kWords * kPerWord];
#pragma unroll
    for (int i = 0; i < kWords; ++i) unpack_word<T>(words[i], wide + i * kPerWord);
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = wide[i];
    if (!rows.whole_vectors && (first < 0 || first + N > width)) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (static_cast<unsigned>(first + i) >= static_cast<unsigned>(width)) out[i] = 0;
      }
    }
  }

 private:
  template <int By>
  __device__ __forceinline__ static void shift_words(uint32_t (&words)[4 * kLoads + 1], bool yes) {
#pragma unroll
    for (int i = 0; i + By <= 4 * kLoads; ++i) words[i] = yes ? words[i + By] : words[i];
  }
};

/// Writes rows of one vector a lane. The 32 lanes may stand in different rows. Where rows are not 16-byte aligned the
/// warp exchanges its vectors through shared memory and writes 32 neighbouring words at a time: a lane that wrote its
/// own pieces would touch every 32-byte sector four times.
/// `Along`: the lane moves along its row from store to store, instead of from row to row.
template <class T, bool Along>
struct RowStore {
  struct Target {
    T* address;   ///< element 0 of the lane's vector in its first store
    int columns;  ///< valid columns from there
    int rows;     ///< rows the lane owns
  };
  struct Shared {
    uint4 vectors[32];
    Target targets[32];
  };
  static constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));

  /// One piece of a vector: stores whose progress is below `limit` write it.
  struct Piece {
    T* address;
    int limit;
  };

  Shared& shared;  ///< of this warp alone
  StoreWidth width;
  Piece pieces[4];  ///< the lane's own vector, or the four words it writes for others

  __device__ __forceinline__ RowStore(Shared& s, const Target& own, StoreWidth w) : shared(s), width(w) {
    pieces[0] = piece(own, 0);
    if (width == StoreWidth::Vector) return;
    shared.targets[threadIdx.x % 32] = own;
    __syncwarp();
    if (width == StoreWidth::Word) {
#pragma unroll
      for (int i = 0; i < 4; ++i) pieces[i] = foreign_piece<uint32_t>(i);
    }
  }

  /// Stores `offset` elements beyond the target's address. `progress`: rows done or, along a row, columns passed.
  /// All lanes of the warp call it.
  __device__ __forceinline__ void write(const float (&values)[kVectorWidth<T>], int progress, int64_t offset) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = pack_word<T>(values + i * kPerWord);
    const uint4 packed{words[0], words[1], words[2], words[3]};
    if (width == StoreWidth::Vector) {
      if (progress < pieces[0].limit) __stcs(reinterpret_cast<uint4*>(pieces[0].address + offset), packed);
      return;
    }
    __syncwarp();  // the last vectors have been read
    shared.vectors[threadIdx.x % 32] = packed;
    __syncwarp();
    if (width == StoreWidth::Word) {
#pragma unroll
      for (int i = 0; i < 4; ++i) write_piece<uint32_t>(i, pieces[i], progress, offset);
    } else if constexpr (sizeof(T) == 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) write_piece<uint16_t>(i, foreign_piece<uint16_t>(i), progress, offset);
    }
  }

 private:
  /// The piece of `target` that starts `column` elements into its vector.
  __device__ __forceinline__ static Piece piece(const Target& target, int column) {
    const int columns = target.columns - column;
    return {target.address + column, Along ? columns : columns > 0 ? target.rows : 0};
  }

  /// The i-th piece that this lane writes: neighbouring lanes take neighbouring pieces.
  template <class Word>
  __device__ __forceinline__ Piece foreign_piece(int i) const {
    constexpr int kPieces = kVectorBytes / static_cast<int>(sizeof(Word));
    constexpr int kElements = static_cast<int>(sizeof(Word) / sizeof(T));
    const int index = i * 32 + static_cast<int>(threadIdx.x % 32);
    return piece(shared.targets[index / kPieces], index % kPieces * kElements);
  }

  template <class Word>
  __device__ __forceinline__ void write_piece(int i, const Piece& to, int progress, int64_t offset) const {
    const Word* words = reinterpret_cast<const Word*>(shared.vectors);
    if (progress < to.limit) {
      __stcs(reinterpret_cast<Word*>(to.address + offset), words[i * 32 + static_cast<int>(threadIdx.x % 32)]);
    }
  }
};

}  // namespace halo::cuda::device
