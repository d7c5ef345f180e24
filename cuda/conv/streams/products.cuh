// What a warp of gather.cuh reads of a unit, and the products of it.
#pragma once

#include "../../device/mma.cuh"
#include "../small_groups/tile.cuh"
#include "ring.cuh"

namespace halo::cuda::conv::streams {

/// What is known when the kernel is compiled. A product is 16 positions of eight channels under one tap of the width,
/// half types under two.
template <class T, int Index>
struct Compiled {
  using Type = T;
  static constexpr Shape kShape = kShapes[Index];
  static constexpr int kStep = kShape.step, kChunks = kShape.chunks, kLive = kShape.live, kTiles = kShape.tiles();
  static constexpr int kProducts = kShape.products(sizeof(T)), kTaps = sizeof(T) == 2 ? 2 : 1;
  static constexpr int kThreads = 32 * (kShape.users() + 1);
  static constexpr int kEight = 8 * kStep * static_cast<int>(sizeof(T));  ///< bytes of x in 8 positions
  static constexpr bool kWindows = kShape.windows(sizeof(T));
  static constexpr int kLaneApart = kShape.lane_apart(sizeof(T));
  static constexpr int kWindow = kStep * (2 * kTiles - 1) + kShape.taps;  ///< columns of x of a lane's positions
  /// Of those, at either end, that alone may not exist where Edges::Outer.
  static constexpr int kEdge = sizeof(T) == 4 ? 4 : 2;

  /// From a lane's first position to that of half `half` of its tiles.
  static __device__ constexpr int position(int half) { return kWindows ? half / 2 + half % 2 * kTiles : half * 8; }
};

/// f(integral_constant<int, i>) for i from 0 to N - 1.
template <int N, class F>
__device__ __forceinline__ void unroll(const F& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (f(std::integral_constant<int, I>{}), ...); }
  (std::make_integer_sequence<int, N>{});
}

/// Words of a lane's weights of a product.
template <class T>
inline constexpr int kWeightWords = sizeof(T) == 4 ? 4 : 2;

/// A lane's operands of one channel in a row: offset from `slots`, of half types that of the word that holds the
/// first; and which bytes of two words are two neighbouring columns.
struct Start {
  int offset = 0;
  uint32_t bytes = 0;
};

template <class T>
__device__ __forceinline__ Start start_at(int offset) {
  if constexpr (sizeof(T) == 4) return {offset, 0};
  return {offset & ~3, (offset & 2) != 0 ? 0x5432u : 0x3210u};
}

/// Operand A of a warp's tiles, of the channels of `starts`, `further` bytes behind those. Half types: two
/// neighbouring columns a word, from the two words that hold them. `Last`: the second has no weight; where the
/// word is not the row's, zero stands for it, as what lies before a row may be infinite.
template <class C, bool Last>
__device__ __forceinline__ void load_words(uint32_t (&a)[C::kTiles][4], const unsigned char* slots,
                                           const Start (&starts)[2], int further) {
#pragma unroll
  for (int i = 0; i < 4 * C::kTiles; ++i) {
    const Start& start = starts[i % 4 / 2];
    const auto* const words =
        reinterpret_cast<const uint32_t*>(slots + start.offset + further + (i / 4 * 2 + i % 2) * C::kEight);
    if constexpr (sizeof(typename C::Type) == 4) {
      a[i / 4][i % 4] = words[0];
    } else {
      a[i / 4][i % 4] = __byte_perm(words[0], Last ? 0u : words[1], start.bytes);
    }
  }
}

/// part[j] += rows[j] * weights, or = where First, in split products.
template <bool First, int kTiles>
__device__ __forceinline__ void multiply_split(float (&part)[kTiles][4], const small_groups::Operand<4, true>* rows,
                                               const uint4& weights) {
  const uint32_t high[2] = {weights.x, weights.y}, low[2] = {weights.z, weights.w};
#pragma unroll
  for (int j = 0; j < kTiles; ++j) small_groups::multiply_add<First>(part[j], rows[j].low, high);
#pragma unroll
  for (int j = 0; j < kTiles; ++j) small_groups::multiply_add(part[j], rows[j].high, low);
#pragma unroll
  for (int j = 0; j < kTiles; ++j) small_groups::multiply_add(part[j], rows[j].high, high);
}

/// The sums of a few products, which the tensor cores round coarsely, to those of the live depths.
template <int Count, int kTiles, int kLive>
__device__ __forceinline__ void add_part(float (&sums)[kLive][kTiles][4], const float (&part)[Count][kTiles][4]) {
#pragma unroll
  for (int l = 0; l < Count; ++l) {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) sums[l][i / 4][i % 4] += part[l][i / 4][i % 4];
  }
}

/// part[l] += a * weights[l], or = where First, for the live depths l, whose weights are `apart` bytes apart.
template <class T, bool First, int Count, int kTiles, int kLive>
__device__ __forceinline__ void multiply(float (&part)[kLive][kTiles][4], const uint32_t (&a)[kTiles][4],
                                         const unsigned char* weights, int apart) {
  if constexpr (sizeof(T) == 4) {
    small_groups::Operand<4, true> rows[kTiles];
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) rows[i / 4].set(i % 4, __uint_as_float(a[i / 4][i % 4]));
#pragma unroll
    for (int l = 0; l < Count; ++l) {
      multiply_split<First>(part[l], rows, *reinterpret_cast<const uint4*>(weights + l * apart));
    }
  } else {
#pragma unroll
    for (int l = 0; l < Count; ++l) {
      const uint2 words = *reinterpret_cast<const uint2*>(weights + l * apart);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) device::multiply_halves<T>(part[l][j], a[j], {words.x, words.y});
    }
  }
}

/// What may read columns that do not exist: the outer halves of a warp's tiles, 8 positions each (of windows, the outer
/// kEdge columns), or all.
enum class Edges { Outer, All };

/// Zeros for what lies in columns that do not exist; `column` is that of a lane's first position, under the product's
/// first tap.
template <class C, Edges Where>
__device__ __forceinline__ void mask_columns(uint32_t (&a)[C::kTiles][4], int column, unsigned width) {
#pragma unroll
  for (int j = 0; j < 2 * C::kTiles; ++j) {
    if (Where == Edges::Outer && j != 0 && j != 2 * C::kTiles - 1) continue;
    const auto at = static_cast<unsigned>(column + j * 8 * C::kStep);
    uint32_t mask = at < width ? 0xffffffffu : 0;
    if constexpr (C::kTaps == 2) mask = (mask & 0xffffu) | (at + 1 < width ? 0xffff0000u : 0);
    a[j / 2][j % 2] &= mask;
    a[j / 2][j % 2 + 2] &= mask;
  }
}

/// Adds the products of the taps `Phase`, Phase + step and so on of a row and chunk: a lane reads a window of columns
/// once for all of them. An operand has the positions j and j + kTiles of a lane, so the next tap's are the next
/// ones.
template <class C, int Count, Edges Where, int Chunk, int Phase>
__device__ __forceinline__ void add_windows(uint32_t from, int second, int column, unsigned width,
                                            const unsigned char* weights, int live_bytes,
                                            float (&sums)[C::kLive][C::kTiles][4]) {
  constexpr int kTiles = C::kTiles, kTaps = (C::kShape.taps - Phase + C::kStep - 1) / C::kStep;
  constexpr int kProductBytes = 32 * 4 * kWeightWords<float>;
  const auto load = [&](int operand, float(&values)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int w = Phase + (operand + i % 2 * kTiles) * C::kStep;
      // In this place, and again for each operand: loaded earlier there are no registers, loaded once there are
      // moves.
      asm volatile("ld.volatile.shared.f32 %0, [%1];" : "=f"(values[i]) : "r"(from + i / 2 * second + w * 4));
      const bool sure = Where == Edges::Outer && w >= C::kEdge && w < C::kWindow - C::kEdge;
      if (!sure && static_cast<unsigned>(column + w) >= width) values[i] = 0;
    }
  };
  float values[kTiles][4];
  small_groups::Operand<4, true> rows[kTiles + kTaps - 1];
  const auto split = [&](int operand, const float(&of)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[operand].set(i, of[i]);
  };
#pragma unroll
  for (int j = 0; j < kTiles; ++j) load(j, values[j]);
#pragma unroll
  for (int j = 0; j < kTiles; ++j) split(j, values[j]);
  float part[Count][kTiles][4];  // of two products, as the tensor cores round coarsely
  unroll<kTaps>([&]<int Tap>(std::integral_constant<int, Tap>) {
    constexpr bool kMore = Tap + 1 < kTaps;
    if constexpr (kMore) load(Tap + kTiles, values[0]);
    const unsigned char* const own = weights + ((Phase + Tap * C::kStep) * C::kChunks + Chunk) * kProductBytes;
#pragma unroll
    for (int l = 0; l < Count; ++l)
      multiply_split<Tap % 2 == 0>(part[l], rows + Tap, *reinterpret_cast<const uint4*>(own + l * live_bytes));
    if constexpr (kMore) split(Tap + kTiles, values[0]);
    if constexpr (Tap % 2 == 1 || !kMore) add_part<Count>(sums, part);
  });
}

/// The same of half types, all products of a row and chunk: position p under product q reads the words p + q and, where
/// columns lie across words, p + q + 1.
template <class C, int Count, Edges Where>
__device__ __forceinline__ void add_half_windows(const unsigned char* slots, const Start (&starts)[2], int column,
                                                 unsigned width, const unsigned char* weights, int live_bytes,
                                                 float (&sums)[C::kLive][C::kTiles][4]) {
  using T = typename C::Type;
  constexpr int kTiles = C::kTiles, kWords = 2 * kTiles + C::kProducts - 1;
  uint32_t words[2][kWords];
#pragma unroll
  for (int i = 0; i < 2 * kWords; ++i)
    words[i / kWords][i % kWords] = reinterpret_cast<const uint32_t*>(slots + starts[i / kWords].offset)[i % kWords];
#pragma unroll
  for (int q = 0; q < C::kProducts; ++q) {
    uint32_t a[kTiles][4];
#pragma unroll
    for (int p = 0; p < 2 * kTiles; ++p) {
      const int w = (p + q) * C::kStep;
      const bool sure = Where == Edges::Outer && w >= C::kEdge && w + 1 < C::kWindow - C::kEdge;
      const auto at = static_cast<unsigned>(column + w);
      const uint32_t mask = sure ? 0xffffffffu : (at < width ? 0xffffu : 0) | (at + 1 < width ? 0xffff0000u : 0);
#pragma unroll
      for (int i = 0; i < 2; ++i) {  // behind the last tap zero stands for a word that may not be the row's
        const uint32_t next = q + 1 < C::kProducts ? words[i][p + q + 1] : 0;
        a[p % kTiles][p / kTiles + 2 * i] = __byte_perm(words[i][p + q], next, starts[i].bytes) & mask;
      }
    }
    multiply<T, false, Count>(sums, a, weights + q * C::kChunks * 32 * 4 * kWeightWords<T>, live_bytes);
  }
}

/// Adds the products of a unit's rows in the first `Count` live depths. `from`: offsets from `slots` of the lane's
/// first operands in the first row of the run; `column`: of x, of those.
template <class C, int Count, Edges Where>
__device__ __forceinline__ void add_rows(const Plan& p, const Item& item, int column, int h, const unsigned char* slots,
                                         const int (&from)[C::kChunks][2], const unsigned char* weights, int live_bytes,
                                         float (&sums)[C::kLive][C::kTiles][4]) {
  using T = typename C::Type;
  constexpr int kSize = static_cast<int>(sizeof(T)), kTiles = C::kTiles, kChunks = C::kChunks;
  constexpr int kAll = C::kProducts * kChunks;
  constexpr int kProductBytes = 32 * 4 * kWeightWords<T>;
#pragma unroll 1
  for (int k = 0; k < p.height.kernel; ++k, weights += kAll * kProductBytes) {
    const int row = h * p.height.step + p.height.origin + k * p.height.apart;
    if (static_cast<unsigned>(row) >= static_cast<unsigned>(p.height.source)) continue;
    Start starts[kChunks][2];
#pragma unroll
    for (int i = 0; i < 2 * kChunks; ++i)
      starts[i / 2][i % 2] = start_at<T>(from[i / 2][i % 2] + (row - item.row) * p.width.source * kSize);
    if constexpr (C::kWindows && kSize == 2) {
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk)
        add_half_windows<C, Count, Where>(slots, starts[chunk], column, static_cast<unsigned>(p.width.source),
                                          weights + chunk * kProductBytes, live_bytes, sums);
    } else if constexpr (C::kWindows) {
      const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(slots));
      unroll<kChunks * C::kStep>([&]<int I>(std::integral_constant<int, I>) {
        constexpr int kChunk = I / C::kStep;
        const int first = starts[kChunk][0].offset, second = starts[kChunk][1].offset;
        add_windows<C, Count, Where, kChunk, I % C::kStep>(
            shared + first, second - first, column, static_cast<unsigned>(p.width.source), weights, live_bytes, sums);
      });
    } else {
      float part[Count][kTiles][4];  // of two products of float32, as the tensor cores round coarsely
      unroll<kAll>([&]<int I>(std::integral_constant<int, I>) {
        constexpr int kChunk = I % kChunks, kTap = I / kChunks * C::kTaps;
        constexpr bool kLast = I / kChunks == C::kProducts - 1;
        uint32_t a[kTiles][4];
        load_words<C, kLast>(a, slots, starts[kChunk], kTap * kSize);
        mask_columns<C, Where>(a, column + kTap, static_cast<unsigned>(p.width.source));
        const unsigned char* const own = weights + I * kProductBytes;
        if constexpr (kSize == 2) {
          multiply<T, false, Count>(sums, a, own, live_bytes);
        } else {
          multiply<T, I % 2 == 0, Count>(part, a, own, live_bytes);
          if constexpr (I % 2 == 1 || I == kAll - 1) add_part<Count>(sums, part);
        }
      });
    }
  }
}

}  // namespace halo::cuda::conv::streams
