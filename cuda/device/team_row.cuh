// A row as the team of threads that works on it sees it; a block's teams march through the rows. HeldRow reads a
// contiguous row once, by 16 bytes where it can, and keeps it in registers; StreamedRow reads rows of any step and
// length again in every pass. Both have
//   more()                              whether the block has rows left; teams beyond the last row are not `active`
//   advance()                           to the block's next rows
//   Raw load(const T* x)                this team's row of x as it was read, so that the next row can be on its way
//   Values values(raw)                  in accumulator type
//   at(x, j)                            its element j
//   each(f, values...)                  f(column, element...) for the thread's elements
//   store(out, f, values...)            out = f(column, element...), elements in accumulator type
//   combine(value, shared, f)           over the team; all threads of the block call it
// so that a kernel is written once.
#pragma once

#include <type_traits>

#include "../launch.h"
#include "number.cuh"
#include "packs.cuh"
#include "rows.h"
#include "teams.cuh"

namespace halo::cuda {

struct RowTeams {
  Rows rows;
  Teams teams;
  bool packs = false;  ///< rows are whole packs, all aligned

  /// Blocks, each of which marches through its share of the rows: enough to fill the largest GPUs.
  unsigned blocks() const {
    constexpr unsigned kMost = 1056;
    return std::min(teams.blocks(rows.count), kMost);
  }
};

/// Where a block's march is: its teams are at rows block_row, block_row + 1, ...
struct RowMarch {
  int64_t row, block_row, count;
  int lanes;
  bool active;

  __device__ explicit RowMarch(const RowTeams& t)
      : row(int64_t{blockIdx.x} * t.teams.lanes + t.teams.lane()),
        block_row(int64_t{blockIdx.x} * t.teams.lanes),
        count(t.rows.count),
        lanes(t.teams.lanes),
        active(row < count) {}
  __device__ bool more() const { return block_row < count; }
  __device__ void next() {
    const int64_t step = int64_t{gridDim.x} * lanes;
    row += step;
    block_row += step;
    active = row < count;
  }
};

template <class T, int kPacks>
struct HeldRow : RowMarch {
  using Element = T;
  using Value = device::Accumulator<T>;
  static constexpr bool kHeld = true;
  static constexpr int kSize = kWide<T>, kElements = kPacks * kSize;
  struct Raw {
    Pack<T, kSize> at[kPacks];
  };
  struct Values {
    Value at[kElements];
  };
  /// A row that all have in common, read when it is needed; null: all `otherwise`.
  struct Columns {
    const T* data;
    Value otherwise;
  };
  struct Chunk {
    Value at[kSize];
  };

  int length, rank, depth;
  int first, step;  ///< of the thread's columns, see column()
  int held;         ///< so many of the thread's elements are in the row
  bool packs;

  __device__ explicit HeldRow(const RowTeams& t)
      : RowMarch(t),
        length(static_cast<int>(t.rows.length)),
        rank(t.teams.rank()),
        depth(t.teams.depth),
        packs(t.packs) {
    // The lengths alone decide who has which elements, so that the bits of sums do not depend on where rows begin.
    const bool whole = length % kSize == 0;
    first = whole ? rank * kSize : rank;
    step = whole ? 1 : depth;
    const int past = max(length - first, 0), pitch = whole ? depth * kSize : depth;
    held = (past + pitch - 1) / pitch * (whole ? kSize : 1);
  }
  __device__ void advance() { next(); }

  __device__ __forceinline__ int column(int e) const { return first + e / kSize * depth * kSize + e % kSize * step; }
  __device__ __forceinline__ bool holds(int e) const { return e < held; }

  __device__ __forceinline__ Raw load(const T* x) const {
    Raw raw{};
    if (!active) return raw;
    const T* const from = x + row * length;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) raw.at[p] = load_pack(from, p);
    return raw;
  }
  __device__ __forceinline__ Values values(const Raw& raw) const {
    Values values;
#pragma unroll
    for (int e = 0; e < kElements; ++e) values.at[e] = device::to_accumulator(raw.at[e / kSize].at[e % kSize]);
    return values;
  }
  /// Element j of this team's row of x.
  __device__ __forceinline__ Value at(const T* x, int64_t j) const {
    return device::to_accumulator(x[row * length + j]);
  }
  template <class F, class... V>
  __device__ __forceinline__ void each(const F& f, const V&... values) const {
    if (!active) return;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      if (holds(e)) f(int64_t{column(e)}, values.at[e]...);
    }
  }
  template <class F, class... V>
  __device__ __forceinline__ void store(T* out, const F& f, const V&... values) const {
    if (!active) return;
    T* const to = out + row * length;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!holds(p * kSize)) continue;
      Pack<T, kSize> pack;
      const auto apply = [&](const auto&... chunk) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          pack.at[k] = device::from_accumulator<T>(f(int64_t{column(p * kSize + k)}, chunk.at[k]...));
        }
      };
      apply(chunk(values, p)...);
      if (packs) {
        *reinterpret_cast<Pack<T, kSize>*>(to + column(p * kSize)) = pack;
      } else {
#pragma unroll
        for (int k = 0; k < kSize; ++k) {
          if (holds(p * kSize + k)) to[column(p * kSize + k)] = pack.at[k];
        }
      }
    }
  }
  template <class V, class Combine>
  __device__ __forceinline__ V combine(V value, V* shared, const Combine& f) const {
    return combine_neighbours(depth, value, shared, f);
  }

  __device__ __forceinline__ Chunk chunk(const Values& values, int p) const {
    Chunk chunk;
#pragma unroll
    for (int k = 0; k < kSize; ++k) chunk.at[k] = values.at[p * kSize + k];
    return chunk;
  }
  __device__ __forceinline__ Chunk chunk(const Columns& columns, int p) const {
    Chunk chunk;
    Pack<T, kSize> pack{};
    if (columns.data != nullptr) pack = load_pack(columns.data, p);
#pragma unroll
    for (int k = 0; k < kSize; ++k) {
      chunk.at[k] = columns.data == nullptr ? columns.otherwise : device::to_accumulator(pack.at[k]);
    }
    return chunk;
  }

 private:
  __device__ __forceinline__ Pack<T, kSize> load_pack(const T* from, int p) const {
    Pack<T, kSize> pack{};
    if (packs) {
      if (holds(p * kSize)) pack = *reinterpret_cast<const Pack<T, kSize>*>(from + column(p * kSize));
    } else {
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        if (holds(p * kSize + k)) pack.at[k] = from[column(p * kSize + k)];
      }
    }
    return pack;
  }
};

template <class T>
struct StreamedRow : RowMarch {
  using Element = T;
  using Value = device::Accumulator<T>;
  using Raw = const T*;
  using Values = const T*;
  static constexpr bool kHeld = false;

  const RowTeams& t;
  int64_t begin, length, step;
  int rank;

  __device__ explicit StreamedRow(const RowTeams& teams)
      : RowMarch(teams), t(teams), step(teams.rows.step), rank(teams.teams.rank()) {
    locate();
  }
  __device__ void advance() {
    next();
    locate();
  }
  __device__ __forceinline__ Raw load(const T* x) const { return x + begin; }
  __device__ __forceinline__ Values values(Raw raw) const { return raw; }
  __device__ __forceinline__ Value at(const T* x, int64_t j) const {
    return device::to_accumulator(x[begin + j * step]);
  }
  template <class F, class... V>
  __device__ __forceinline__ void each(const F& f, const V&... values) const {
#pragma unroll 4
    for (int64_t j = rank; j < length; j += t.teams.depth) f(j, device::to_accumulator(values[j * step])...);
  }
  template <class F, class... V>
  __device__ __forceinline__ void store(T* out, const F& f, const V&... values) const {
#pragma unroll 4
    for (int64_t j = rank; j < length; j += t.teams.depth) {
      out[begin + j * step] = device::from_accumulator<T>(f(j, device::to_accumulator(values[j * step])...));
    }
  }
  template <class V, class Combine>
  __device__ __forceinline__ V combine(V value, V* shared, const Combine& f) const {
    return combine_team(t.teams, value, shared, f);
  }

 private:
  __device__ void locate() {
    begin = active ? t.rows.begin(row) : 0;
    length = active ? t.rows.length : 0;
  }
};

/// f(type_identity of the row class, RowTeams) for contiguous rows that are short enough; `packs` as RowTeams has it.
template <class T, int kElements, class F>
void with_held_row(const Rows& rows, bool packs, F&& f) {
  using Row = HeldRow<T, kElements / kWide<T>>;
  const auto depth = std::bit_ceil(static_cast<uint64_t>((rows.length + kElements - 1) / kElements));
  f(std::type_identity<Row>{}, RowTeams{rows, Teams::with_depth(depth), packs});
}

/// Elements that a thread holds of most rows, and of the longest.
template <class T>
inline constexpr int kHeldElements = sizeof(T) == 8 ? 8 : 16;
template <class T>
inline constexpr int kMostHeldElements = 2 * kHeldElements<T>;

/// Calls f(type_identity of the row class, its RowTeams) with what suits `rows`; `data` are the arrays it will load and
/// store.
template <class T, class F, class... Data>
void with_row_class(const Rows& rows, F&& f, const Data*... data) {
  constexpr int kElements = kHeldElements<T>, kMost = kMostHeldElements<T>;
  if (rows.step > 1 || rows.length > kMost * Teams::kThreads) {
    return f(std::type_identity<StreamedRow<T>>{}, RowTeams{rows, Teams::of(rows.count, rows.length, rows.step > 1)});
  }
  const bool packs = rows.length % kWide<T> == 0 && (is_aligned<T, kWide<T>>(data) && ...);
  if (rows.length <= kElements * Teams::kThreads) return with_held_row<T, kElements>(rows, packs, f);
  with_held_row<T, kMost>(rows, packs, f);
}

}  // namespace halo::cuda
