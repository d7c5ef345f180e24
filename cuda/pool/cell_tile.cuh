// Backward of the usual poolings.
#pragma once

#include "../device/number.cuh"
#include "../device/shared_words.cuh"
#include "../device/stage_run.cuh"
#include "backward_tile.cuh"

namespace halo::cuda {

/// Windows of two or three inputs, two apart, on both axes: a thread marches down the cells of two by two inputs, over
/// which there are four windows. kAcross: how wide windows of maxima are.
template <class T, bool kMaximum, int kAcross = 0>
struct CellTile {
  using Element = T;
  using Value = device::Accumulator<T>;
  using Image = T;
  static constexpr int kThreads = kBackwardThreads<T>;
  const T* g;
  const uint8_t* offsets;  ///< of maxima
  int first_cell, across;  ///< of a row
  int lanes;               ///< threads for these: whole warps, which then meet no bank twice, unless too many are idle
  int groups, each;        ///< a thread has up to `each` cells of a column, of which there are so many groups
  FastDivide by_lanes, by_groups;

  CellTile(const PoolPlanes& p, const BackwardTiling& t, const T* gradient, const uint8_t* offsets_of = nullptr)
      : g(gradient),
        offsets(offsets_of),
        first_cell(cell_of(p.width, 0)),
        across(cells_of(p.width)),
        lanes(across % 32 == 0 || across % 32 > 24 ? (across + 31) / 32 * 32 : across),
        groups(std::clamp(kThreads / (t.planes * lanes), 1, t.cells)),
        each((t.cells + groups - 1) / groups),
        by_lanes(static_cast<uint32_t>(lanes)),
        by_groups(static_cast<uint32_t>(groups)) {}
  static bool serves(const PoolPlanes& p) {
    const auto narrow = [](const PoolPlaneAxis& a) { return a.stride == 2 && (a.kernel == 2 || a.kernel == 3); };
    return narrow(p.height) && narrow(p.width);
  }

  struct Places {
    int image, g, offsets, shares, barrier, end;
    Places(const PoolPlanes& p, const BackwardTiling& t) {
      SharedPieces pieces;
      image = pieces.take(static_cast<int64_t>(device::staged_bytes<T>(t.inputs(p))));
      // With what is read, though not used, of the windows before the first and behind the last one.
      g = pieces.take(static_cast<int64_t>(device::copied_bytes<T>(t.outputs(p))), device::kLine);
      offsets = pieces.take(kMaximum ? static_cast<int64_t>(device::copied_bytes<uint8_t>(t.outputs(p) + 1)) : 0,
                            device::kLine);
      shares = pieces.take(kMaximum ? 0 : static_cast<int64_t>(sizeof(Value)) * t.window_rows);
      barrier = pieces.take(sizeof(uint64_t));
      end = pieces.end();
    }
  };

  /// What a row of windows gives a cell. Averages: sums for its columns. Maxima: the gradients of the window that
  /// starts there and of the one before it, and kTap << t where the tap t that is the cell's is the maximum's.
  struct Row {
    Value value[2];
    uint32_t taps;
  };

  __device__ void fill(const PoolPlanes& p, const BackwardTiling& t, const BackwardTile& tile, unsigned char* shared,
                       const Places& places, Image* image) const {
    const int thread = static_cast<int>(threadIdx.x);
    device::RunStage<kThreads> stage(*reinterpret_cast<uint64_t*>(shared + places.barrier), kMaximum ? 2 : 1);
    const T* const up = stage.copy(shared + places.g, g + tile.begin(p), tile.count(p), tile.behind(p));
    const uint8_t* taps = nullptr;
    auto* const row_shares = reinterpret_cast<Value*>(shared + places.shares);
    if constexpr (kMaximum) {
      taps = stage.copy(shared + places.offsets, offsets + tile.begin(p), tile.count(p), tile.behind(p));
    } else {
#pragma unroll 1
      for (int i = thread; i < tile.window_rows; i += kThreads) {
        row_shares[i] = share(p, p.height, tile.first_window + i, true);
      }
    }
    stage.wait();
    const int pitch = p.width.output, width = p.width.input;
    for (int unit = thread; unit < tile.planes * groups * lanes; unit += kThreads) {
      uint32_t own, group;
      const int plane = static_cast<int>(by_groups.divide(by_lanes.divide(static_cast<uint32_t>(unit), own), group));
      if (static_cast<int>(own) >= across) continue;
      const int begin = static_cast<int>(group) * each, end = min(begin + each, t.cells);
      // Of the window that starts at the cells, and of the one before where it reaches them.
      const int window = first_cell + static_cast<int>(own);
      const bool has[] = {window<pitch, p.width.kernel> 2 &&
                          static_cast<unsigned>(window - 1) < static_cast<unsigned>(pitch)};
      const uint32_t exists[] = {has[0] ? kTap : 0, has[1] ? kTap : 0};
      Value column_share[2] = {0, 0};
      for (int j = 0; j < 2; ++j) {
        if (!kMaximum && has[j]) column_share[j] = share(p, p.width, window - j, false);
      }
      int row_at = tile.cell + begin - 1 - tile.first_window;  // of those staged
      const int place = (plane * tile.window_rows + row_at) * pitch + window;
      const T* from = up + place;
      const uint8_t* tap = taps + place;
      // What does not exist is read all the same, from beside it, and counts for nothing.
      const auto next = [&] {
        Row row;
        if constexpr (kMaximum) {
          row.value[0] = device::to_accumulator(from[0]);
          row.value[1] = device::to_accumulator(from[-1]);
          row.taps =
              (__funnelshift_l(0, exists[0], tap[0]) & ~kBefore) | (__funnelshift_l(0, exists[1], tap[-1]) & kBefore);
        } else {
          const Value value = has[0] ? device::to_accumulator(from[0]) * column_share[0] : Value(0);
          const Value before = has[1] ? device::to_accumulator(from[-1]) * column_share[1] : Value(0);
          const Value row_share = row_shares[row_at];
          row.value[0] = (before + value) * row_share;
          row.value[1] = value * row_share;
        }
        from += pitch;
        tap += pitch;
        ++row_at;
        return row;
      };
      const auto none = [&] {
        const Row row{};
        from += pitch;
        tap += pitch;
        ++row_at;
        return row;
      };
      const int column = p.width.start(window);
      const bool left = column >= 0, right = column + 1 < width;
      int to = p.height.start(tile.cell + begin) - tile.top;
      auto out = static_cast<uint32_t>(__cvta_generic_to_shared(image + (plane * tile.rows + to) * width + column));
      Row above = row_at >= 0 && row_at < tile.window_rows ? next() : none();
      if constexpr (kMaximum) above = below(above);
      const auto put = [&](const Row& row, bool first_in, bool second_in) {
        Value sums[2][2];
        of_cell(p, above, row, sums);
#pragma unroll
        for (int a = 0; a < 2; ++a, ++to) {
          const bool in = a == 0 ? first_in : second_in;
          store_pair(out, sums[a], in && left, in && right);
          out += static_cast<uint32_t>(width) * sizeof(T);
          asm volatile("" : "+r"(out));  // one addition a row
        }
        above = kMaximum ? below(row) : row;
      };
      const auto edge = [&] {
        const Row row = row_at < tile.window_rows ? next() : none();
        put(row, static_cast<unsigned>(to) < static_cast<unsigned>(tile.rows),
            static_cast<unsigned>(to + 1) < static_cast<unsigned>(tile.rows));
      };
      int k = begin;
      if (to < 0) {
        edge();
        ++k;
      }
      // Where a row of windows and both rows of inputs exist, nobody asks.
      const int inside = min(end, k + min(tile.window_rows - row_at, (tile.rows - to) / 2));
#pragma unroll 4
      for (; k < inside; ++k) put(next(), true, true);
      for (; k < end; ++k) edge();
    }
  }

 private:
  static constexpr uint32_t kTap = 2;  ///< tap 0; the lowest bit would take two instructions to ask for
  /// The taps of the window before that lie over a cell: the last of each row, where there are three.
  static constexpr uint32_t kBefore = kAcross == 3 ? kTap << 2 | kTap << 5 | kTap << 8 : 0;

  /// Of a window's average, of one axis; `all`: what is divided by a given number.
  __device__ static Value share(const PoolPlanes& p, const PoolPlaneAxis& a, int window, bool all) {
    if (p.divisor_override != 0) return all ? Value(1) / static_cast<Value>(p.divisor_override) : Value(1);
    return Value(1) / static_cast<Value>(a.count(a.start(window), p.count_include_pad));
  }
  /// Two elements of the image, as far as they exist.
  __device__ __forceinline__ static void store_pair(uint32_t to, const Value (&pair)[2], bool first, bool second) {
    if constexpr (sizeof(T) == 2) {
      const uint32_t word = device::pack_word<T>(pair);
      if (first) device::store_shared_half(to, word);
      if (second) device::store_shared_half(to + 2, word >> 16);
    } else {
      T* const place = static_cast<T*>(__cvta_shared_to_generic(to));
      if (first) place[0] = pair[0];
      if (second) place[1] = pair[1];
    }
  }
  /// What maxima's windows give the first row of the next cell.
  __device__ __forceinline__ static Row below(const Row& row) {
    const auto is = [&](int tap) { return (row.taps & kTap << tap) != 0; };
    Row next{};
    if (kAcross == 3) next.value[0] = is(2 * kAcross + 2) ? row.value[1] : Value(0);
    if (is(2 * kAcross)) next.value[0] += row.value[0];
    next.value[1] = is(2 * kAcross + 1) ? row.value[0] : Value(0);
    return next;
  }
  /// The gradients of a cell's inputs under two rows of windows; of maxima, `above` is what below() says.
  __device__ __forceinline__ static void of_cell(const PoolPlanes& p, const Row& above, const Row& row,
                                                 Value (&sums)[2][2]) {
    if constexpr (kMaximum) {
      const auto is = [&](int tap) { return (row.taps & kTap << tap) != 0; };
      sums[0][0] = above.value[0];
      sums[0][1] = above.value[1];
      sums[1][0] = kAcross == 3 && is(kAcross + 2) ? row.value[1] : Value(0);
      sums[1][1] = is(kAcross + 1) ? row.value[0] : Value(0);
      if (kAcross == 3 && is(2)) sums[0][0] += row.value[1];
      if (is(0)) sums[0][0] += row.value[0];
      if (is(1)) sums[0][1] += row.value[0];
      if (is(kAcross)) sums[1][0] += row.value[0];
    } else {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        sums[0][b] = p.height.kernel > 2 ? above.value[b] + row.value[b] : row.value[b];
        sums[1][b] = row.value[b];
      }
    }
  }
};

}  // namespace halo::cuda
