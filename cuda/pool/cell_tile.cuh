// Backward of the usual poolings.
#pragma once

#include "../device/number.cuh"
#include "../device/stage_run.cuh"
#include "backward_tile.cuh"

namespace halo::cuda {

/// Windows of two or three inputs, two apart, on both axes: a thread marches down the cells of two by two inputs, over
/// which there are four windows.
template <class T, bool kMaximum>
struct CellTile {
  using Element = T;
  using Value = device::Accumulator<T>;
  using Image = T;
  static constexpr int kThreads = BackwardTiling::kThreads;
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
    int image, g, offsets, shares, end;
    Places(const PoolPlanes& p, const BackwardTiling& t) {
      SharedPieces pieces;
      image = pieces.take(static_cast<int64_t>(device::staged_bytes<T>(t.inputs(p))));
      g = pieces.take(static_cast<int64_t>(device::staged_bytes<T>(t.outputs(p))));
      offsets = pieces.take(kMaximum ? static_cast<int64_t>(device::staged_bytes<uint8_t>(t.outputs(p))) : 0);
      shares = pieces.take(kMaximum ? 0 : static_cast<int64_t>(sizeof(Value)) * t.window_rows);
      end = pieces.end();
    }
  };

  /// What a row of windows gives a cell: averages, sums for its columns; maxima, gradients and taps of both windows.
  struct Row {
    Value value[2];
    int tap[kMaximum ? 2 : 1];
  };

  __device__ void fill(const PoolPlanes& p, const BackwardTiling& t, const BackwardTile& tile, unsigned char* shared,
                       const Places& places, Image* image) const {
    const int thread = static_cast<int>(threadIdx.x);
    const T* const up = device::stage_run<kThreads>(shared + places.g, g + tile.begin(p), tile.count(p));
    const uint8_t* taps = nullptr;
    auto* const row_shares = reinterpret_cast<Value*>(shared + places.shares);
    if constexpr (kMaximum) {
      taps = device::stage_run<kThreads>(shared + places.offsets, offsets + tile.begin(p), tile.count(p));
    } else {
#pragma unroll 1
      for (int i = thread; i < tile.window_rows; i += kThreads) {
        row_shares[i] = share(p, p.height, tile.first_window + i, true);
      }
    }
    device::copy_async_wait_all();
    __syncthreads();
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
      int missing[2];
      Value column_share[2] = {0, 0};
      for (int j = 0; j < 2; ++j) {
        missing[j] = has[j] ? 0 : kNoTap;
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
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            row.tap[j] = tap[-j] | missing[j];
            row.value[j] = device::to_accumulator(from[-j]);
          }
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
        Row row{};
        if constexpr (kMaximum) row.tap[0] = row.tap[1] = kNoTap;
        from += pitch;
        tap += pitch;
        ++row_at;
        return row;
      };
      const int column = p.width.start(window);
      const bool left = column >= 0, right = column + 1 < width;
      int to = p.height.start(tile.cell + begin) - tile.top;
      T* out = image + (plane * tile.rows + to) * width + column;
      Row above = row_at >= 0 && row_at < tile.window_rows ? next() : none();
      const auto put = [&](const Row& row, bool first_in, bool second_in) {
#pragma unroll
        for (int a = 0; a < 2; ++a, ++to, out += width) {
          const bool in = a == 0 ? first_in : second_in;
          const auto pair =
              device::narrow<T>(Pack<Value, 2>{of_cell(p, above, row, a, 0), of_cell(p, above, row, a, 1)});
          if (in && left) out[0] = pair.at[0];
          if (in && right) out[1] = pair.at[1];
        }
        above = row;
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
  static constexpr int kNoTap = 1 << 16;
  /// Of a window's average, of one axis; `all`: what is divided by a given number.
  __device__ static Value share(const PoolPlanes& p, const PoolPlaneAxis& a, int window, bool all) {
    if (p.divisor_override != 0) return all ? Value(1) / static_cast<Value>(p.divisor_override) : Value(1);
    return Value(1) / static_cast<Value>(a.count(a.start(window), p.count_include_pad));
  }
  /// The gradient of the input in row a and column b of a cell, under two rows of windows.
  __device__ __forceinline__ static Value of_cell(const PoolPlanes& p, const Row& above, const Row& row, int a, int b) {
    if constexpr (kMaximum) {
      const auto of = [](const Row& from, int j, int tap) { return from.tap[j] == tap ? from.value[j] : Value(0); };
      const auto add = [](Value& sum, const Row& from, int j, int tap) {
        if (from.tap[j] == tap) sum += from.value[j];
      };
      const int width = p.width.kernel;
      if (a == 1) {
        if (b == 1) return of(row, 0, width + 1);
        Value sum = of(row, 1, width + 2);
        add(sum, row, 0, width);
        return sum;
      }
      Value sum = b == 0 ? of(above, 1, 2 * width + 2) : of(above, 0, 2 * width + 1);
      if (b == 0) add(sum, above, 0, 2 * width);
      if (b == 0) add(sum, row, 1, 2);
      add(sum, row, 0, b);
      return sum;
    } else if (a == 0) {
      return p.height.kernel > 2 ? above.value[b] + row.value[b] : row.value[b];
    } else {
      return row.value[b];
    }
  }
};

}  // namespace halo::cuda
