// Pooling backward. Where windows are small, a block has a tile of inputs. Maxima: it adds the gradients of all outputs
// over the tile into shared memory; windows that could meet in one input go in different phases, so that the order of
// every sum is fixed. Averages: it adds along rows into shared memory, then along columns. Elsewhere a thread an input
// visits the windows over it in order.
#include <halo/ops/pool_backend.h>

#include <algorithm>

#include "../device/map.cuh"
#include "../device/number.cuh"
#include "dispatch.h"
#include "plane.h"
#include "sizes.cuh"

namespace halo::cuda {
namespace {

using device::Accumulator;
using device::from_accumulator;
using device::to_accumulator;

constexpr int kThreads = 256;
constexpr int kHeld = 4;  // outputs a thread has in flight

/// How blocks cut planes: `rows` by `columns` inputs of `planes` planes; one plane unless it fits whole.
struct PoolTiling {
  int planes, rows, columns;
  int out_rows, out_columns;  ///< most outputs whose windows meet a tile
  int row_phases, column_phases;
  Divide row_tiles, column_tiles;
  FastDivide by_rows, by_columns, by_out_rows, by_out_columns, by_kernel, by_row_phases, by_column_phases;

  static constexpr int kCells = 4096, kOutputs = kThreads * kHeld, kMostPhases = 36;

  explicit PoolTiling(const PoolPlanes& p) {
    // Bounded phases bound the windows over a tile, too.
    columns = std::min(p.width.input, kCells / 4);
    rows = whole_strides(std::clamp(kCells / columns, 1, p.height.input), p.height);
    columns = whole_strides(columns, p.width);
    const int64_t across = tiles(p.width.input, columns), down = tiles(p.height.input, rows);
    planes = across * down > 1 ? 1 : std::clamp(std::min(kCells / (rows * columns), kOutputs / p.outputs()), 1, 64);
    out_rows = windows_over(rows, p.height);
    out_columns = windows_over(columns, p.width);
    row_phases = phases(p.height);
    column_phases = phases(p.width);
    row_tiles = Divide(down, blocks(p, across, down));
    column_tiles = Divide(across, blocks(p, across, down));
    by_rows = FastDivide(static_cast<uint32_t>(rows));
    by_columns = FastDivide(static_cast<uint32_t>(columns));
    by_out_rows = FastDivide(static_cast<uint32_t>(out_rows));
    by_out_columns = FastDivide(static_cast<uint32_t>(out_columns));
    by_kernel = FastDivide(static_cast<uint32_t>(p.width.kernel));
    by_row_phases = FastDivide(static_cast<uint32_t>(row_phases));
    by_column_phases = FastDivide(static_cast<uint32_t>(column_phases));
  }
  /// Windows so many phases apart do not meet.
  static int phases(const PoolPlaneAxis& a) { return (a.kernel + a.stride - 1) / a.stride; }
  static bool serves(const PoolPlanes& p) {
    return p.outputs() > 0 && int64_t{phases(p.height)} * phases(p.width) <= kMostPhases;
  }
  int64_t blocks(const PoolPlanes& p) const { return blocks(p, column_tiles.divisor, row_tiles.divisor); }
  std::size_t cells() const { return static_cast<std::size_t>(planes) * rows * columns; }

 private:
  static int64_t tiles(int extent, int tile) { return (int64_t{extent} + tile - 1) / tile; }
  /// Tiles of as equal sizes as multiples of the stride allow.
  static int whole_strides(int tile, const PoolPlaneAxis& a) {
    if (tile >= a.input) return a.input;
    if (tile < a.stride) return tile;
    const int64_t count = tiles(a.input, tile), even = (a.input + count - 1) / count;
    return static_cast<int>(std::min<int64_t>((even + a.stride - 1) / a.stride * a.stride, tile));
  }
  static int windows_over(int extent, const PoolPlaneAxis& a) {
    return std::min(a.output, (extent + a.kernel - 2) / a.stride + 1);
  }
  int64_t blocks(const PoolPlanes& p, int64_t across, int64_t down) const {
    return (p.planes + planes - 1) / planes * across * down;
  }
};

/// A block's tile, cut where the planes end.
struct PoolTile {
  int64_t first_plane;
  int planes, first_row, first_column, rows, columns;
  int out_row, out_column;  ///< the first output whose window may meet the tile

  __device__ PoolTile(const PoolPlanes& p, const PoolTiling& t) {
    int64_t group = blockIdx.x;
    first_column = static_cast<int>(t.column_tiles.split(group)) * t.columns;
    first_row = static_cast<int>(t.row_tiles.split(group)) * t.rows;
    first_plane = group * t.planes;
    planes = static_cast<int>(min(int64_t{t.planes}, p.planes - first_plane));
    rows = min(t.rows, p.height.input - first_row);
    columns = min(t.columns, p.width.input - first_column);
    out_row = first_window(p.height, first_row);
    out_column = first_window(p.width, first_column);
  }
  __device__ static int first_window(const PoolPlaneAxis& a, int input) {
    const int low = input + a.before - a.kernel + 1;
    return low <= 0 ? 0 : (low + a.stride - 1) / a.stride;
  }
};

/// An output as a thread holds it: the cell of the tile that gets the gradient.
template <class Value>
struct HeldOutput {
  Value gradient;
  int cell, phase;  ///< phase -1: none
};

/// Shared memory: the tile, [planes][rows][columns].
template <class T, class Offset>
__global__ void __launch_bounds__(kThreads)
    max_tile_kernel(const __grid_constant__ PoolPlanes p, const __grid_constant__ PoolTiling t, const Offset* offsets,
                    const T* g, T* x) {
  using Value = Accumulator<T>;
  extern __shared__ double shared[];
  Value* const sums = reinterpret_cast<Value*>(shared);
  const PoolTile tile(p, t);
  const int thread = static_cast<int>(threadIdx.x), cells = tile.planes * t.rows * t.columns;
  for (int i = thread; i < cells; i += kThreads) sums[i] = 0;

  const int outputs = tile.planes * t.out_rows * t.out_columns;
  for (int begin = 0; begin < outputs; begin += kThreads * kHeld) {
    HeldOutput<Value> held[kHeld];
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      HeldOutput<Value>& h = held[k];
      const int i = begin + k * kThreads + thread;
      uint32_t column, row, tap_column;
      const int plane =
          static_cast<int>(t.by_out_rows.divide(t.by_out_columns.divide(static_cast<uint32_t>(i), column), row));
      const int oh = tile.out_row + static_cast<int>(row), ow = tile.out_column + static_cast<int>(column);
      h.phase = -1;
      if (i >= outputs || oh >= p.height.output || ow >= p.width.output) continue;
      const int64_t at = (tile.first_plane + plane) * p.outputs() + oh * p.width.output + ow;
      h.gradient = to_accumulator(g[at]);
      const uint32_t tap_row = t.by_kernel.divide(static_cast<uint32_t>(offsets[at]), tap_column);
      const int r = p.height.start(oh) + static_cast<int>(tap_row) - tile.first_row;
      const int c = p.width.start(ow) + static_cast<int>(tap_column) - tile.first_column;
      if (static_cast<unsigned>(r) >= static_cast<unsigned>(tile.rows) ||
          static_cast<unsigned>(c) >= static_cast<unsigned>(tile.columns)) {
        continue;
      }
      h.cell = (plane * t.rows + r) * t.columns + c;
      uint32_t row_phase, column_phase;
      t.by_row_phases.divide(row, row_phase);
      t.by_column_phases.divide(column, column_phase);
      h.phase = static_cast<int>(row_phase) * t.column_phases + static_cast<int>(column_phase);
    }
    for (int phase = 0; phase < t.row_phases * t.column_phases; ++phase) {
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kHeld; ++k) {
        if (held[k].phase == phase) sums[held[k].cell] += held[k].gradient;
      }
    }
  }
  __syncthreads();
  if (tile.columns == p.width.input && (tile.planes == 1 || tile.rows == p.height.input)) {  // one run of x
    T* const out = x + tile.first_plane * p.inputs() + tile.first_row * p.width.input;
#pragma unroll 4
    for (int i = thread; i < tile.planes * tile.rows * tile.columns; i += kThreads) {
      out[i] = from_accumulator<T>(sums[i]);
    }
    return;
  }
  T* const out = x + tile.first_plane * p.inputs() + tile.first_row * p.width.input + tile.first_column;
  for (int row = thread / 32; row < tile.rows; row += kThreads / 32) {
    for (int column = thread % 32; column < tile.columns; column += 32) {
      out[row * p.width.input + column] = from_accumulator<T>(sums[row * t.columns + column]);
    }
  }
}

/// The windows over one input of an axis, counted from the tile's first.
struct WindowsOver {
  int16_t first, last;
  __device__ WindowsOver(const PoolPlaneAxis& a, int input, int first_out)
      : first(static_cast<int16_t>(PoolTile::first_window(a, input) - first_out)),
        last(static_cast<int16_t>(min(a.output - 1, (input + a.before) / a.stride) - first_out)) {}
};

/// Shared memory of the average's kernel, elements of `Value` and of WindowsOver.
struct AverageTile {
  int sums, shares;  ///< [planes][out_rows][columns] sums along rows; [out_rows + out_columns] shares of windows
  int windows;       ///< [rows + columns] windows over inputs
  explicit AverageTile(const PoolTiling& t)
      : sums(t.planes * t.out_rows * t.columns), shares(t.out_rows + t.out_columns), windows(t.rows + t.columns) {}
  template <class Value>
  std::size_t bytes() const {
    return static_cast<std::size_t>(sums + shares) * sizeof(Value) +
           static_cast<std::size_t>(windows) * sizeof(WindowsOver);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    average_tile_kernel(const __grid_constant__ PoolPlanes p, const __grid_constant__ PoolTiling t,
                        const __grid_constant__ AverageTile layout, const T* g, T* x) {
  using Value = Accumulator<T>;
  extern __shared__ double shared[];
  Value* const sums = reinterpret_cast<Value*>(shared);
  Value *const row_share = sums + layout.sums, *const column_share = row_share + t.out_rows;
  WindowsOver* const over_row = reinterpret_cast<WindowsOver*>(row_share + layout.shares);
  WindowsOver* const over_column = over_row + t.rows;
  const PoolTile tile(p, t);
  const int thread = static_cast<int>(threadIdx.x);
  const bool overridden = p.divisor_override != 0;
  const auto share = [&](const PoolPlaneAxis& a, int o) {
    return Value(1) / static_cast<Value>(a.count(a.start(o), p.count_include_pad));
  };
  for (int i = thread; i < tile.rows; i += kThreads) over_row[i] = {p.height, tile.first_row + i, tile.out_row};
  for (int i = thread; i < tile.columns; i += kThreads)
    over_column[i] = {p.width, tile.first_column + i, tile.out_column};
  for (int o = thread; o < t.out_rows; o += kThreads) {
    row_share[o] = overridden ? Value(1) / static_cast<Value>(p.divisor_override) : share(p.height, tile.out_row + o);
  }
  for (int o = thread; o < t.out_columns; o += kThreads) {
    column_share[o] = overridden ? Value(1) : share(p.width, tile.out_column + o);
  }
  __syncthreads();
  const T* const up = g + tile.first_plane * p.outputs() + tile.out_column;
#pragma unroll 4
  for (int i = thread; i < tile.planes * t.out_rows * t.columns; i += kThreads) {
    uint32_t column, row;
    const uint32_t plane = t.by_out_rows.divide(t.by_columns.divide(static_cast<uint32_t>(i), column), row);
    const int oh = tile.out_row + static_cast<int>(row);
    if (static_cast<int>(column) >= tile.columns || oh >= p.height.output) continue;
    const T* const from = up + static_cast<int64_t>(plane) * p.outputs() + oh * p.width.output;
    const WindowsOver over = over_column[column];
    Value sum = 0;
    for (int o = over.first; o <= over.last; ++o) sum += to_accumulator(from[o]) * column_share[o];
    sums[i] = sum * row_share[row];
  }
  __syncthreads();
  T* const out = x + tile.first_plane * p.inputs() + tile.first_row * p.width.input + tile.first_column;
#pragma unroll 4
  for (int i = thread; i < tile.planes * t.rows * t.columns; i += kThreads) {
    uint32_t column, row;
    const uint32_t plane = t.by_rows.divide(t.by_columns.divide(static_cast<uint32_t>(i), column), row);
    if (static_cast<int>(column) >= tile.columns || static_cast<int>(row) >= tile.rows) continue;
    const WindowsOver over = over_row[row];
    const Value* const from = sums + static_cast<int>(plane) * t.out_rows * t.columns + static_cast<int>(column);
    Value sum = 0;
    for (int o = over.first; o <= over.last; ++o) sum += from[o * t.columns];
    out[static_cast<int64_t>(plane) * p.inputs() + static_cast<int>(row) * p.width.input + static_cast<int>(column)] =
        from_accumulator<T>(sum);
  }
}

/// Calls f(planes, tiling, blocks) where tiles serve.
template <class F>
bool by_tiles(const PoolProblem& problem, F&& f) {
  const auto planes = PoolPlanes::of(problem);
  if (!planes || !PoolTiling::serves(*planes) || problem.planes() * problem.input_positions() == 0) return false;
  const PoolTiling tiling(*planes);
  const int64_t blocks = tiling.blocks(*planes);
  if (blocks > INT32_MAX) return false;
  f(*planes, tiling, static_cast<unsigned>(blocks));
  return true;
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
  dispatch_pool(kName, g.dtype(), problem.offset_dtype(),
                [&]<class T, class Offset>(std::type_identity<T>, std::type_identity<Offset>) {
                  const T* const up = g.data<T>();
                  const Offset* const at = offsets.data<Offset>();
                  const DeviceScope scope(x.device());
                  const auto run = [&](const PoolPlanes& planes, const PoolTiling& tiling, unsigned blocks) {
                    launch(kName, max_tile_kernel<T, Offset>, blocks, kThreads, tiling.cells() * sizeof(Accumulator<T>),
                           scope.stream(), planes, tiling, at, up, x.data<T>());
                  };
                  if (by_tiles(problem, run)) return;
                  generate<1>(kName, MaxGatherBackward<T, Offset>{PoolSizes(problem), at, up}, Elements<T>{x});
                });
}

void avg_pool_backward(const PoolProblem& problem, const Tensor& g, const Tensor& x) {
  constexpr const char* kName = "avg_pool_backward";
  constexpr int64_t kMostTaps = 32;  // whose sums are as good in float32
  dispatch_floating(kName, g.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const up = g.data<T>();
    const DeviceScope scope(x.device());
    const auto run = [&](const PoolPlanes& planes, const PoolTiling& tiling, unsigned blocks) {
      const AverageTile layout(tiling);
      launch(kName, average_tile_kernel<T>, blocks, kThreads, layout.bytes<Accumulator<T>>(), scope.stream(), planes,
             tiling, layout, up, x.data<T>());
    };
    if (problem.taps() <= kMostTaps && by_tiles(problem, run)) return;
    generate<1>(kName, AverageBackward<T>{PoolSizes(problem), up}, Elements<T>{x});
  });
}

}  // namespace halo::cuda
