// A row as the team of threads that works on it sees it; a block's teams march through the rows. HeldRow reads a
// contiguous row once, by 16 bytes where it can, and keeps it in registers; StreamedRow reads rows of any step and
// length again in every pass. Both have
//   more()                              whether the block has rows left; teams beyond the last row are not `active`
//   advance()                           to the block's next rows
//   fetch(slot, x)                      this team's row of x sets out for a slot of the block's shared memory
//   Values take(slot, x)                and has arrived, in accumulator type; the slot is free for the next row's
//   at(x, j)                            its element j
//   each(f, values...)                  f(column, element...) for the thread's elements
//   store(out, f, values...)            out = f(column, element...), elements in accumulator type
//   combine(value, shared, f)           over the team; all threads of the block call it
// so that a kernel is written once; it is launched with kSlotBytes of dynamic shared memory a slot.
#pragma once

#include <type_traits>

#include "../launch.h"
#include "async_copy.cuh"
#include "packs.cuh"
#include "rows.h"
#include "teams.cuh"
#include "widen.cuh"

namespace halo::cuda {

struct RowTeams {
  Rows rows;
  Teams teams;
  bool packs = false;  ///< rows are whole packs, all aligned

  /// Blocks, each of which marches through its share of the rows: eight for each multiprocessor of the largest GPUs,
  /// or as a kernel wants them.
  unsigned blocks(unsigned most = 1056) const { return std::min(teams.blocks(rows.count), most); }
};

/// Where a block's march is: its teams are at rows block_row, block_row + 1, ...
struct RowMarch {
  int64_t row, block_row, count;
  int lanes;
  bool active;

  __device__ RowMarch(const Teams& teams, int64_t rows)
      : row(int64_t{blockIdx.x} * teams.lanes + teams.lane()),
        block_row(int64_t{blockIdx.x} * teams.lanes),
        count(rows),
        lanes(teams.lanes),
        active(row < count) {}
  __device__ bool more() const { return block_row < count; }
  __device__ void next() {
    const int64_t step = int64_t{gridDim.x} * lanes;
    row += step;
    block_row += step;
    active = row < count;
  }
};

/// In pairs.
template <class Sum, int N>
__device__ __forceinline__ Sum sum_of(Sum (&parts)[N]) {
#pragma unroll
  for (int step = 1; step < N; step *= 2) {
#pragma unroll
    for (int k = 0; k < N; k += 2 * step) parts[k] = parts[k] + parts[k + step];
  }
  return parts[0];
}

/// Elements of a row that a thread holds at most.
template <class T>
inline constexpr int kHeldElements = sizeof(T) == 8 ? 16 : 32;

/// Where rows are on their way: each thread has its own places, so that nobody waits for others.
extern __shared__ __align__(16) unsigned char row_slots[];

/// `kWholePacks`: rows are whole packs, which threads hold; else single elements. `kTeamOfBlock`: the block is one
/// team, so that places in the row are known to the compiler.
template <class T, bool kWholePacks, bool kAligned = false, int kBlock = Teams::kThreads, int kMost = kHeldElements<T>,
          bool kTeamOfBlock = false>
struct HeldRow : RowMarch {
  using Element = T;
  using Value = device::Accumulator<T>;
  static constexpr bool kHeld = true, kPacked = kWholePacks;
  static constexpr int kThreads = kBlock;  ///< of a block
  static constexpr int kSize = kWide<T>, kElements = kMost, kPacks = kElements / kSize;
  static constexpr std::size_t kSlotBytes = std::size_t{kElements} * sizeof(T) * kThreads;
  using Aligned = HeldRow<T, kWholePacks, true, kBlock, kMost, kTeamOfBlock>;
  using OfBlock = HeldRow<T, kWholePacks, kAligned, kBlock, kMost, true>;
  /// A row's packs as they lie in memory, which for short types are fewer registers.
  struct Raw {
    Pack<uint32_t> at[kPacks];
  };
  struct Values {
    Value at[kElements];
    Raw raw;
  };
  /// A row that all have in common, read when it is needed; null: all `otherwise`.
  struct Columns {
    const T* data;
    Value otherwise;
  };
  /// The same where it is known to be there, of packs that the thread holds.
  struct Present {
    const T* data;
  };
  using Chunk = Pack<Value, kSize>;

  int length, rank, depth;
  int held;      ///< so many of the thread's packs, or elements, are in the row
  bool aligned;  ///< packs begin on their alignment

  __device__ explicit HeldRow(const RowTeams& t) : HeldRow(t, kTeamOfBlock ? Teams{1, kThreads} : t.teams) {}
  __device__ HeldRow(const RowTeams& t, const Teams& teams)
      : RowMarch(teams, t.rows.count),
        length(static_cast<int>(t.rows.length)),
        rank(kTeamOfBlock ? static_cast<int>(threadIdx.x) : teams.rank()),
        depth(teams.depth),
        aligned(kAligned || t.packs) {
    // The lengths alone decide who has which elements, so that the bits of sums do not depend on where rows begin.
    const int items = kPacked ? length / kSize : length;
    held = (max(items - rank, 0) + depth - 1) / depth;
  }
  __device__ void advance() { next(); }

  __device__ __forceinline__ bool in_packs() const { return kPacked && (kAligned || aligned); }
  __device__ __forceinline__ int column(int e) const {
    return kPacked ? (rank + e / kSize * depth) * kSize + e % kSize : rank + e * depth;
  }
  __device__ __forceinline__ bool holds(int e) const { return (kPacked ? e / kSize : e) < held; }

  __device__ __forceinline__ void fetch(int slot, const T* x) const {
    const T* const from = x + (active ? row * length : 0);
    unsigned char* const to = place(slot);
    if (in_packs()) {
      const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        device::copy_async_16(address + p * kPackPitch, from + column(p * kSize), active && holds(p * kSize) ? 16 : 0);
      }
      return;
    }
    Pack<T, kSize> packs[kPacks];
#pragma unroll
    for (int e = 0; e < kElements; ++e) packs[e / kSize].at[e % kSize] = active && holds(e) ? from[column(e)] : T{};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) *reinterpret_cast<Pack<T, kSize>*>(to + p * kPackPitch) = packs[p];
  }
  /// What was fetched to `slot` and waited for, and pack p of it.
  __device__ __forceinline__ Raw raw(int slot) const {
    Raw raw;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      raw.at[p] = *reinterpret_cast<const Pack<uint32_t>*>(place(slot) + p * kPackPitch);
    }
    return raw;
  }
  __device__ __forceinline__ Chunk slot_chunk(int slot, int p) const {
    return device::widen(*reinterpret_cast<const Pack<T, kSize>*>(place(slot) + p * kPackPitch));
  }
  __device__ __forceinline__ Values take(int slot, const T*) const {
    device::copy_async_wait_all();
    Values values;
    values.raw = raw(slot);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const Chunk wide = chunk(values.raw, p);
#pragma unroll
      for (int k = 0; k < kSize; ++k) values.at[p * kSize + k] = wide.at[k];
    }
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
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int e = p * kSize; e < (p + 1) * kSize; ++e) {
        if (holds(e)) f(column(e), values.at[e]...);
      }
    }
  }
  /// f(sum, e) adds the thread's element e, also beyond the row, where 0 was fetched: as many sums as a pack has
  /// elements, which are added up in pairs. sum_held: not beyond the row.
  template <class Sum, class F>
  __device__ __forceinline__ Sum sum(const F& f) const {
    Sum parts[kSize] = {};
#pragma unroll
    for (int e = 0; e < kElements; ++e) f(parts[e % kSize], e);
    return sum_of(parts);
  }
  template <class Sum, class F>
  __device__ __forceinline__ Sum sum_held(const F& f) const {
    Sum parts[kSize] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (kPacked && !holds(p * kSize)) break;
#pragma unroll
      for (int e = p * kSize; e < (p + 1) * kSize; ++e) {
        if (kPacked || holds(e)) f(parts[e % kSize], e);
      }
    }
    return sum_of(parts);
  }
  template <class F, class... V>
  __device__ __forceinline__ void store(T* out, const F& f, const V&... values) const {
    if (!active) return;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!holds(p * kSize)) continue;
      Chunk results;
      const auto apply = [&](const auto&... chunk) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) results.at[k] = static_cast<Value>(f(column(p * kSize + k), chunk.at[k]...));
      };
      apply(chunk(values, p)...);
      store_chunk(out, p, results);
    }
  }
  /// The thread's pack p of an active row, which it holds.
  __device__ __forceinline__ void store_chunk(T* out, int p, const Chunk& results) const {
    T* const to = out + row * length;
    const Pack<T, kSize> pack = device::narrow<T>(results);
    if (in_packs()) {
      *reinterpret_cast<Pack<T, kSize>*>(to + column(p * kSize)) = pack;
    } else {
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        if (holds(p * kSize + k)) to[column(p * kSize + k)] = pack.at[k];
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
  __device__ __forceinline__ Chunk chunk(const Raw& raw, int p) const {
    Pack<T, kSize> pack;
    memcpy(&pack, &raw.at[p], sizeof(pack));
    return device::widen(pack);
  }
  __device__ __forceinline__ Chunk chunk(const Columns& columns, int p) const {
    Chunk chunk;
#pragma unroll
    for (int k = 0; k < kSize; ++k) chunk.at[k] = columns.otherwise;
    Pack<T, kSize> pack = device::narrow<T>(chunk);
    if (in_packs()) {  // by words, as the compiler would choose between halves of them
      Pack<uint32_t> words;
      memcpy(&words, &pack, sizeof(pack));
      if (columns.data != nullptr && holds(p * kSize)) {
        words = *reinterpret_cast<const Pack<uint32_t>*>(columns.data + column(p * kSize));
      }
      memcpy(&pack, &words, sizeof(pack));
    } else if (columns.data != nullptr) {
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        if (holds(p * kSize + k)) pack.at[k] = columns.data[column(p * kSize + k)];
      }
    }
    return device::widen(pack);
  }
  __device__ __forceinline__ Chunk chunk(const Present& columns, int p) const {
    Pack<T, kSize> pack;
    if (in_packs()) {
      pack = *reinterpret_cast<const Pack<T, kSize>*>(columns.data + column(p * kSize));
    } else {
#pragma unroll
      for (int k = 0; k < kSize; ++k) {
        pack.at[k] = holds(p * kSize + k) ? columns.data[column(p * kSize + k)] : T{};
      }
    }
    return device::widen(pack);
  }

 private:
  static constexpr int kPackPitch = kThreads * 16;  // from a thread's pack to its next
  __device__ __forceinline__ static unsigned char* place(int slot) {
    return row_slots + slot * kSlotBytes + threadIdx.x * 16;
  }
};

template <class T>
struct StreamedRow : RowMarch {
  using Element = T;
  using Value = device::Accumulator<T>;
  using Values = const T*;
  static constexpr bool kHeld = false, kPacked = false;
  static constexpr std::size_t kSlotBytes = 0;

  const RowTeams& t;
  int64_t begin, length, step;
  int rank;

  __device__ explicit StreamedRow(const RowTeams& teams)
      : RowMarch(teams.teams, teams.rows.count), t(teams), step(teams.rows.step), rank(teams.teams.rank()) {
    locate();
  }
  __device__ void advance() {
    next();
    locate();
  }
  __device__ __forceinline__ void fetch(int, const T*) const {}
  __device__ __forceinline__ Values take(int, const T* x) const { return x + begin; }
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
template <class T, class F>
void with_held_row(const Rows& rows, bool packs, F&& f) {
  constexpr int64_t kLeast = 4;  // threads: fewer would take less than memory gives at once
  const int64_t needed = (rows.length + kHeldElements<T> - 1) / kHeldElements<T>, wide = rows.length / kWide<T>;
  const auto depth = std::bit_ceil(static_cast<uint64_t>(std::max({needed, std::min(wide, kLeast), int64_t{1}})));
  const Teams teams = Teams::with_depth(depth);
  if (rows.length % kWide<T> == 0) return f(std::type_identity<HeldRow<T, true>>{}, RowTeams{rows, teams, packs});
  f(std::type_identity<HeldRow<T, false>>{}, RowTeams{rows, teams});
}

/// Calls f(type_identity of the row class, its RowTeams) with what suits `rows`; `data` are the arrays it will load and
/// store.
template <class T, class F, class... Data>
void with_row_class(const Rows& rows, F&& f, const Data*... data) {
  if (rows.step > 1 || rows.length > kHeldElements<T> * Teams::kThreads) {
    return f(std::type_identity<StreamedRow<T>>{}, RowTeams{rows, Teams::of(rows.count, rows.length, rows.step > 1)});
  }
  with_held_row<T>(rows, (is_aligned<T, kWide<T>>(data) && ...), f);
}

}  // namespace halo::cuda
