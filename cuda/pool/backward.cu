// Pooling backward. A block has a tile of inputs, built in shared memory from the gradients of all windows over it,
// which wait there, too. Where windows do not allow for tiles, a thread an input visits the windows over it. Either way
// the order of the sums is fixed.
#include <halo/ops/pool_backend.h>

#include <algorithm>

#include "../device/map.cuh"
#include "../device/number.cuh"
#include "../device/stage_run.cuh"
#include "dispatch.h"
#include "plane.h"
#include "sizes.cuh"

namespace halo::cuda {
namespace {

using device::Accumulator;
using device::from_accumulator;
using device::to_accumulator;

constexpr int kThreads = 256;

/// Windows over one input of an axis, at most.
HALO_HOST_DEVICE int reach_of(const PoolPlaneAxis& a) { return (a.kernel + a.stride - 1) / a.stride; }

/// The inputs of an axis that lie in the same place to the windows' starts are a cell, `stride` of them: window s
/// starts at cell s, and the windows over an input of that cell are s, s - 1, ...
HALO_HOST_DEVICE int cell_of(const PoolPlaneAxis& a, int i) { return (i + a.before) / a.stride; }

/// How blocks cut planes: so many cells of rows, of one plane unless it fits whole.
struct BackwardTiling {
  static constexpr int64_t kInputs = 6144, kMostBytes = 96 * 1024;
  int planes = 1, cells;  ///< of a tile
  int rows;               ///< of inputs, at most
  int window_rows;        ///< over them, at most
  FastDivide by_columns, by_kernel, by_phase_rows, by_phase_columns;
  Divide tiles;
  int64_t blocks;

  explicit BackwardTiling(const PoolPlanes& p) {
    const PoolPlaneAxis& a = p.height;
    const int all = cell_of(a, a.input - 1) - cell_of(a, 0) + 1;
    cells = static_cast<int>(std::clamp<int64_t>(kInputs / (int64_t{p.width.input} * a.stride), 1, all));
    if (cells == all) planes = static_cast<int>(std::clamp<int64_t>(kInputs / p.inputs(), 1, 64));
    rows = std::min(cells * a.stride, a.input);
    window_rows = planes > 1 ? a.output : std::min(cells + reach_of(a) - 1, a.output);
    by_columns = FastDivide(static_cast<uint32_t>(p.width.input));
    by_kernel = FastDivide(static_cast<uint32_t>(p.width.kernel));
    const auto phase = [](int windows, int reach) {
      return FastDivide(static_cast<uint32_t>((windows + reach - 1) / reach));
    };
    by_phase_rows = phase(window_rows, reach_of(a));
    by_phase_columns = phase(p.width.output, reach_of(p.width));
    const int64_t down = (all + cells - 1) / cells;
    blocks = (p.planes + planes - 1) / planes * down;
    tiles = Divide(down, blocks);
  }
  int64_t inputs(const PoolPlanes& p) const { return int64_t{planes} * rows * p.width.input; }
  int64_t outputs(const PoolPlanes& p) const { return int64_t{planes} * window_rows * p.width.output; }
};

/// Shared memory, taken piece by piece.
class SharedPieces {
 public:
  int take(int64_t bytes) {
    const int64_t at = end_;
    end_ = std::min((at + bytes + 15) / 16 * 16, kMost);
    return static_cast<int>(at);
  }
  int end() const { return static_cast<int>(end_); }

 private:
  static constexpr int64_t kMost = 1 << 30;  // more than there is
  int64_t end_ = 0;
};

/// What a block works on: rows top ... top + rows - 1, from cell `cell` on, of `planes` planes.
struct BackwardTile {
  int64_t first_plane;
  int planes, cell, top, rows;
  __device__ BackwardTile(const PoolPlanes& p, const BackwardTiling& t) : first_plane(blockIdx.x) {
    cell = static_cast<int>(t.tiles.split(first_plane)) * t.cells + cell_of(p.height, 0);
    first_plane *= t.planes;
    planes = static_cast<int>(min(int64_t{t.planes}, p.planes - first_plane));
    top = max(p.height.start(cell), 0);
    rows = min(p.height.start(cell + t.cells), p.height.input) - top;
  }
};

/// Maxima: each window's gradient is added where its maximum was. Windows so far apart that they do not meet go
/// together, a phase.
template <class T>
struct MaximumTile {
  using Element = T;
  using Value = Accumulator<T>;
  using Image = Value;  ///< what the tile's results are gathered in
  const T* g;
  const uint8_t* offsets;

  struct Places {
    int image, g, offsets, end;
    Places(const PoolPlanes& p, const BackwardTiling& t) {
      SharedPieces pieces;
      image = pieces.take(static_cast<int64_t>(device::staged_bytes<T>(t.inputs(p)) * (sizeof(Image) / sizeof(T))));
      g = pieces.take(static_cast<int64_t>(device::staged_bytes<T>(t.outputs(p))));
      offsets = pieces.take(static_cast<int64_t>(device::staged_bytes<uint8_t>(t.outputs(p))));
      end = pieces.end();
    }
  };

  __device__ void fill(const PoolPlanes& p, const BackwardTiling& t, const BackwardTile& tile, unsigned char* shared,
                       const Places& places, Image* image) const {
    const bool whole = t.planes > 1;
    const int down = reach_of(p.height), across = reach_of(p.width), thread = static_cast<int>(threadIdx.x);
    const int first = whole ? 0 : max(tile.cell - down + 1, 0);
    const int window_rows = whole ? p.height.output : max(min(tile.cell + t.cells, p.height.output) - first, 0);
    const int64_t begin = tile.first_plane * p.outputs() + first * p.width.output;
    const int count = tile.planes * window_rows * p.width.output;
    const T* const up = device::stage_run<kThreads>(shared + places.g, g + begin, count);
    const uint8_t* const taps = device::stage_run<kThreads>(shared + places.offsets, offsets + begin, count);
    for (int at = thread * 16; at < places.g; at += kThreads * 16) {
      *reinterpret_cast<int4*>(shared + places.image + at) = int4{0, 0, 0, 0};
    }
    device::copy_async_wait_all();
    const int units = tile.planes * static_cast<int>(t.by_phase_rows.divisor * t.by_phase_columns.divisor);
    for (int phase_row = 0; phase_row < down; ++phase_row) {
      for (int phase_column = 0; phase_column < across; ++phase_column) {
        __syncthreads();
#pragma unroll 2
        for (int unit = thread; unit < units; unit += kThreads) {
          uint32_t m, k;
          const int plane =
              static_cast<int>(t.by_phase_rows.divide(t.by_phase_columns.divide(static_cast<uint32_t>(unit), m), k));
          const int row = static_cast<int>(k) * down + phase_row, column = static_cast<int>(m) * across + phase_column;
          if (row >= window_rows || column >= p.width.output) continue;
          const int at = (plane * window_rows + row) * p.width.output + column;
          uint32_t tap_column;
          const int tap_row = static_cast<int>(t.by_kernel.divide(taps[at], tap_column));
          const int to = p.height.start(first + row) + tap_row - tile.top;
          const int to_column = p.width.start(column) + static_cast<int>(tap_column);
          if (static_cast<unsigned>(to) < static_cast<unsigned>(tile.rows) &&
              static_cast<unsigned>(to_column) < static_cast<unsigned>(p.width.input)) {
            image[(plane * tile.rows + to) * p.width.input + to_column] += to_accumulator(up[at]);
          }
        }
      }
    }
  }
};

/// Averages: each window's share of its gradient waits for the inputs under it, with zeros around, and a thread marches
/// down the cells of a column, with the sums of the windows' rows in registers.
template <class T>
struct AverageTile {
  using Element = T;
  using Value = Accumulator<T>;
  using Image = T;
  static constexpr int kReach = 3, kAround = kReach - 1;
  const T* g;
  FastDivide by_waiting;  ///< columns

  AverageTile(const PoolPlanes& p, const T* gradient)
      : g(gradient), by_waiting(static_cast<uint32_t>(waiting_columns(p))) {}

  static bool serves(const PoolPlanes& p) { return std::max(reach_of(p.height), reach_of(p.width)) <= kReach; }

  /// Of windows that wait for a plane: one for each cell and kAround before.
  static int waiting_columns(const PoolPlanes& p) {
    return cell_of(p.width, p.width.input - 1) - cell_of(p.width, 0) + kReach;
  }
  struct Places {
    int image, shares, row_shares, column_shares, end;
    Places(const PoolPlanes& p, const BackwardTiling& t) {
      constexpr auto kValue = static_cast<int64_t>(sizeof(Value));
      const int64_t columns = waiting_columns(p), rows = t.cells + kAround;
      SharedPieces pieces;
      image = pieces.take(static_cast<int64_t>(device::staged_bytes<T>(t.inputs(p))));
      shares = pieces.take(kValue * t.planes * rows * columns);
      row_shares = pieces.take(kValue * rows);
      column_shares = pieces.take(kValue * columns);
      end = pieces.end();
    }
  };

  __device__ void fill(const PoolPlanes& p, const BackwardTiling& t, const BackwardTile& tile, unsigned char* shared,
                       const Places& places, Image* image) const {
    auto* const shares = reinterpret_cast<Value*>(shared + places.shares);  // [planes][rows][columns]
    auto* const row_shares = reinterpret_cast<Value*>(shared + places.row_shares);
    auto* const column_shares = reinterpret_cast<Value*>(shared + places.column_shares);
    const int thread = static_cast<int>(threadIdx.x), rows = t.cells + kAround,
              columns = static_cast<int>(by_waiting.divisor);
    const int first_row = tile.cell - kAround, first_column = cell_of(p.width, 0) - kAround;
    const auto share = [&](const PoolPlaneAxis& a, int window, Value given) {
      if (static_cast<unsigned>(window) >= static_cast<unsigned>(a.output)) return Value(0);
      return p.divisor_override != 0 ? given
                                     : Value(1) / static_cast<Value>(a.count(a.start(window), p.count_include_pad));
    };
    const Value given = Value(1) / static_cast<Value>(p.divisor_override);
#pragma unroll 1
    for (int i = thread; i < rows; i += kThreads) row_shares[i] = share(p.height, first_row + i, given);
#pragma unroll 1
    for (int i = thread; i < columns; i += kThreads) column_shares[i] = share(p.width, first_column + i, 1);
    __syncthreads();
    const int each = rows * columns;
    for (int plane = 0; plane < tile.planes; ++plane) {
      const T* const from = g + (tile.first_plane + plane) * p.outputs();
#pragma unroll 4
      for (int i = thread; i < each; i += kThreads) {
        uint32_t of_row;
        const int row = static_cast<int>(by_waiting.divide(static_cast<uint32_t>(i), of_row));
        const Value row_share = row_shares[row], column_share = column_shares[of_row];
        Value value = 0;
        if (row_share != 0 && column_share != 0) {
          const int at = (first_row + row) * p.width.output + first_column + static_cast<int>(of_row);
          value = to_accumulator(from[at]) * column_share * row_share;
        }
        shares[plane * each + i] = value;
      }
    }
    __syncthreads();
    const int stride = p.height.stride;
    const int groups = max(kThreads / (tile.planes * p.width.input), 1), cells = (t.cells + groups - 1) / groups;
    for (int unit = thread; unit < tile.planes * groups * p.width.input; unit += kThreads) {
      uint32_t column;
      const int of_all = static_cast<int>(t.by_columns.divide(static_cast<uint32_t>(unit), column));
      const int plane = of_all / groups, begin = (of_all - plane * groups) * cells;
      const int cell = cell_of(p.width, static_cast<int>(column)), tap = static_cast<int>(column) - p.width.start(cell);
      const int over = (p.width.kernel - tap + p.width.stride - 1) / p.width.stride;
      const Value* from = shares + plane * each + begin * columns + cell - first_column;
      const auto next = [&] {
        Value sum = 0;
#pragma unroll
        for (int j = kReach - 1; j >= 0; --j) {
          if (j < over) sum += from[-j];
        }
        from += columns;
        return sum;
      };
      Value held[kReach];  // of windows' rows s, s - 1, ...
#pragma unroll
      for (int r = kReach - 1; r > 0; --r) held[r - 1] = next();
      int to = p.height.start(tile.cell + begin) - tile.top;
      T* out = image + (plane * tile.rows + to) * p.width.input + static_cast<int>(column);
#pragma unroll 2
      for (int k = begin; k < min(begin + cells, t.cells); ++k) {
#pragma unroll
        for (int r = kReach - 1; r > 0; --r) held[r] = held[r - 1];
        held[0] = next();
#pragma unroll 1
        for (int row_tap = 0; row_tap < stride; ++row_tap, ++to, out += p.width.input) {
          Value sum = 0;
#pragma unroll
          for (int r = kReach - 1; r >= 0; --r) {
            if (row_tap + r * stride < p.height.kernel) sum += held[r];
          }
          if (static_cast<unsigned>(to) < static_cast<unsigned>(tile.rows)) *out = from_accumulator<T>(sum);
        }
      }
    }
  }
};

/// Windows of up to three inputs, two apart, on both axes: what is known of each window waits with windows that are not
/// there around, and a thread marches down the cells of two by two inputs, under which there are four windows.
template <class T, bool kMaximum>
struct CellTile {
  using Element = T;
  using Value = Accumulator<T>;
  using Image = T;
  const T* g;
  const uint8_t* offsets;           ///< of maxima
  FastDivide by_waiting, by_cells;  ///< windows that wait, and cells, of a row

  CellTile(const PoolPlanes& p, const T* gradient, const uint8_t* offsets_of = nullptr)
      : g(gradient),
        offsets(offsets_of),
        by_waiting(static_cast<uint32_t>(cells_across(p) + 1)),
        by_cells(static_cast<uint32_t>(cells_across(p))) {}
  static int cells_across(const PoolPlanes& p) { return cell_of(p.width, p.width.input - 1) - cell_of(p.width, 0) + 1; }
  static bool serves(const PoolPlanes& p) {
    return p.height.stride == 2 && p.width.stride == 2 && p.height.kernel <= 3 && p.width.kernel <= 3;
  }

  struct Places {
    int image, values, taps, row_shares, column_shares, end;
    Places(const PoolPlanes& p, const BackwardTiling& t) {
      constexpr auto kValue = static_cast<int64_t>(sizeof(Value));
      const int64_t columns = cells_across(p) + 1, rows = t.cells + 1, windows = t.planes * rows * columns;
      SharedPieces pieces;
      image = pieces.take(static_cast<int64_t>(device::staged_bytes<T>(t.inputs(p))));
      values = pieces.take(kValue * windows);
      taps = pieces.take(kMaximum ? windows : 0);
      row_shares = pieces.take(kMaximum ? 0 : kValue * rows);
      column_shares = pieces.take(kMaximum ? 0 : kValue * columns);
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
    auto* const values = reinterpret_cast<Value*>(shared + places.values);  // [planes][rows][columns]
    auto* const taps = reinterpret_cast<uint8_t*>(shared + places.taps);
    auto* const row_shares = reinterpret_cast<Value*>(shared + places.row_shares);
    auto* const column_shares = reinterpret_cast<Value*>(shared + places.column_shares);
    const int thread = static_cast<int>(threadIdx.x), columns = static_cast<int>(by_waiting.divisor);
    const int rows = t.cells + 1, each = rows * columns;
    const int first_row = tile.cell - 1, first_column = cell_of(p.width, 0) - 1;
    if constexpr (!kMaximum) {
#pragma unroll 1
      for (int i = thread; i < rows + columns; i += kThreads) {
        (i < rows ? row_shares[i] : column_shares[i - rows]) =
            i < rows ? share(p, p.height, first_row + i, true) : share(p, p.width, first_column + i - rows, false);
      }
      __syncthreads();
    }
    for (int plane = 0; plane < tile.planes; ++plane) {
      const int64_t first = (tile.first_plane + plane) * p.outputs();
#pragma unroll 4
      for (int i = thread; i < each; i += kThreads) {
        uint32_t of_row;
        const int row = static_cast<int>(by_waiting.divide(static_cast<uint32_t>(i), of_row));
        const int window_row = first_row + row, window_column = first_column + static_cast<int>(of_row);
        const bool has = static_cast<unsigned>(window_row) < static_cast<unsigned>(p.height.output) &&
                         static_cast<unsigned>(window_column) < static_cast<unsigned>(p.width.output);
        const int64_t at = first + window_row * p.width.output + window_column;
        Value value = has ? to_accumulator(g[at]) : Value(0);
        if constexpr (kMaximum) {
          int tap = 255;  // none
          if (has) {
            uint32_t tap_column;
            tap = static_cast<int>(t.by_kernel.divide(offsets[at], tap_column)) * 16;
            tap += static_cast<int>(tap_column);
          }
          taps[plane * each + i] = static_cast<uint8_t>(tap);
        } else if (has) {
          value *= column_shares[of_row] * row_shares[row];
        }
        values[plane * each + i] = value;
      }
    }
    __syncthreads();
    const int across = static_cast<int>(by_cells.divisor);
    const int groups = max(kThreads / (tile.planes * across), 1), cells = (t.cells + groups - 1) / groups;
    for (int unit = thread; unit < tile.planes * groups * across; unit += kThreads) {
      uint32_t own;
      const int of_all = static_cast<int>(by_cells.divide(static_cast<uint32_t>(unit), own));
      const int plane = of_all / groups, begin = (of_all - plane * groups) * cells;
      int at = plane * each + begin * columns + static_cast<int>(own) + 1;
      const auto next = [&] {
        Row row;
        if constexpr (kMaximum) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            row.value[j] = values[at - j];
            row.tap[j] = taps[at - j];
          }
        } else {
          const Value value = values[at];
          row.value[0] = p.width.kernel > 2 ? values[at - 1] + value : value;
          row.value[1] = p.width.kernel > 1 ? value : Value(0);
        }
        at += columns;
        return row;
      };
      const int column = p.width.start(static_cast<int>(own) + cell_of(p.width, 0));
      const bool left = column >= 0, right = column + 1 < p.width.input;
      int to = p.height.start(tile.cell + begin) - tile.top;
      T* out = image + (plane * tile.rows + to) * p.width.input + column;
      Row above = next();
#pragma unroll 2
      for (int k = begin; k < min(begin + cells, t.cells); ++k) {
        const Row row = next();
#pragma unroll
        for (int a = 0; a < 2; ++a, ++to, out += p.width.input) {
          const Value first = of_cell(p, above, row, a, 0), second = of_cell(p, above, row, a, 1);
          if (static_cast<unsigned>(to) >= static_cast<unsigned>(tile.rows)) continue;
          if (left) out[0] = from_accumulator<T>(first);
          if (right) out[1] = from_accumulator<T>(second);
        }
        above = row;
      }
    }
  }

 private:
  /// Of a window's average, of one axis; `all`: what is divided by a given number.
  __device__ static Value share(const PoolPlanes& p, const PoolPlaneAxis& a, int window, bool all) {
    if (p.divisor_override != 0) return all ? Value(1) / static_cast<Value>(p.divisor_override) : Value(1);
    return Value(1) / static_cast<Value>(a.count(a.start(window), p.count_include_pad));
  }
  /// The gradient of the input in row a and column b of a cell, under two rows of windows.
  __device__ __forceinline__ static Value of_cell(const PoolPlanes& p, const Row& above, const Row& row, int a, int b) {
    if constexpr (kMaximum) {
      Value sum = 0;
      const auto take = [&](const Row& from, int j, int tap) {
        if (from.tap[j] == tap) sum += from.value[j];
      };
      if (a == 0) {
        if (b == 0) take(above, 1, 2 * 16 + 2);
        take(above, 0, 2 * 16 + b);
      }
      if (b == 0) take(row, 1, a * 16 + 2);
      take(row, 0, a * 16 + b);
      return sum;
    } else if (a == 0) {
      return p.height.kernel > 2 ? above.value[b] + row.value[b] : row.value[b];
    } else {
      return p.height.kernel > 1 ? row.value[b] : Value(0);
    }
  }
};

template <class F>
__global__ void __launch_bounds__(kThreads)
    tile_backward_kernel(const __grid_constant__ PoolPlanes p, const __grid_constant__ BackwardTiling t,
                         const __grid_constant__ F f, const __grid_constant__ typename F::Places places,
                         typename F::Element* x) {
  extern __shared__ __align__(16) unsigned char shared[];
  const BackwardTile tile(p, t);
  typename F::Element* const run = x + tile.first_plane * p.inputs() + int64_t{tile.top} * p.width.input;
  auto* const image = device::staged_place<typename F::Image>(shared + places.image, run);
  f.fill(p, t, tile, shared, places, image);
  __syncthreads();
  device::store_run<kThreads>(image, run, tile.planes * tile.rows * p.width.input);
}

/// Launches `f` over the inputs of `planes`; false, and nothing done, where tiles do not serve.
template <class F>
bool by_tiles(const char* name, const PoolPlanes& planes, typename F::Element* x, cudaStream_t stream, const F& f) {
  const BackwardTiling tiling(planes);
  const typename F::Places places(planes, tiling);
  if (places.end > BackwardTiling::kMostBytes || tiling.blocks > INT32_MAX) return false;
  launch(name, tile_backward_kernel<F>, static_cast<unsigned>(tiling.blocks), kThreads,
         static_cast<std::size_t>(places.end), stream, planes, tiling, f, places, x);
  return true;
}

template <class T>
bool maxima_by_tiles(const char* name, const PoolPlanes& planes, T* x, cudaStream_t stream, const T* g,
                     const uint8_t* offsets) {
  if (CellTile<T, true>::serves(planes)) {
    return by_tiles(name, planes, x, stream, CellTile<T, true>(planes, g, offsets));
  }
  return by_tiles(name, planes, x, stream, MaximumTile<T>{g, offsets});
}

template <class T>
bool averages_by_tiles(const char* name, const PoolPlanes& planes, T* x, cudaStream_t stream, const T* g) {
  if (CellTile<T, false>::serves(planes)) return by_tiles(name, planes, x, stream, CellTile<T, false>(planes, g));
  return AverageTile<T>::serves(planes) && by_tiles(name, planes, x, stream, AverageTile<T>(planes, g));
}

template <class T, class Offset>
struct MaxGatherBackward {
  PoolSizes sizes;
  const Offset* offsets;
  const T* g;
  __device__ T operator()(int64_t i) const {
    const PoolPlace place(sizes.input, i);
    const int64_t first = place.plane * sizes.output_positions();
    Accumulator<T> sum = 0;
    each_window_over(sizes, place, [&](int64_t at, int64_t tap, const PoolPlace&) {
      if (static_cast<int64_t>(offsets[first + at]) == tap) sum += to_accumulator(g[first + at]);
    });
    return from_accumulator<T>(sum);
  }
};

template <class T>
struct AverageBackward {
  PoolSizes sizes;
  const T* g;
  __device__ T operator()(int64_t i) const {
    const PoolPlace place(sizes.input, i);
    const int64_t first = place.plane * sizes.output_positions();
    double sum = 0;
    each_window_over(sizes, place, [&](int64_t at, int64_t, const PoolPlace& window) {
      const int64_t divisor = OutputWindows(sizes, window).divisor(sizes);
      sum += static_cast<double>(to_accumulator(g[first + at])) / static_cast<double>(divisor);
    });
    return from_accumulator<T>(static_cast<Accumulator<T>>(sum));
  }
};

}  // namespace

void max_pool_scatter(const PoolProblem& problem, const Tensor& offsets, const Tensor& g, const Tensor& x) {
  constexpr const char* kName = "max_pool_scatter";
  if (x.numel() == 0) return;
  dispatch_pool(kName, g.dtype(), problem.offset_dtype(),
                [&]<class T, class Offset>(std::type_identity<T>, std::type_identity<Offset>) {
                  const T* const up = g.data<T>();
                  const Offset* const at = offsets.data<Offset>();
                  if constexpr (sizeof(Offset) == 1) {
                    const DeviceScope scope(x.device());
                    const auto planes = PoolPlanes::of(problem);
                    if (planes && maxima_by_tiles(kName, *planes, x.data<T>(), scope.stream(), up, at)) return;
                  }
                  generate<1>(kName, MaxGatherBackward<T, Offset>{PoolSizes(problem), at, up}, Elements<T>{x});
                });
}

void avg_pool_backward(const PoolProblem& problem, const Tensor& g, const Tensor& x) {
  constexpr const char* kName = "avg_pool_backward";
  if (x.numel() == 0) return;
  dispatch_floating(kName, g.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const up = g.data<T>();
    const DeviceScope scope(x.device());
    const auto planes = PoolPlanes::of(problem);
    if (planes && averages_by_tiles(kName, *planes, x.data<T>(), scope.stream(), up)) return;
    generate<1>(kName, AverageBackward<T>{PoolSizes(problem), up}, Elements<T>{x});
  });
}

}  // namespace halo::cuda
