// Pooling backward. Where windows are small: maxima, a block has a tile of inputs and adds the gradients of all outputs
// over it into shared memory; windows that could meet in one input go in different phases, so that the order of every
// sum is fixed. Averages, a thread has a column of inputs and marches down their strides. Elsewhere a thread an input
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

/// How threads cover the inputs: columns, then groups of kStrides strides, then planes. Stride o is the inputs whose
/// last window is o; input i of an axis is in stride (i + before) / stride.
struct PoolMarch {
  static constexpr int kStrides = 4;
  Divide columns, groups;
  int64_t threads;

  explicit PoolMarch(const PoolPlanes& p) {
    const PoolPlaneAxis& a = p.height;
    const int64_t strides = (int64_t{a.input} + a.before + a.stride - 1) / a.stride;
    const int64_t all = (strides + kStrides - 1) / kStrides;
    threads = p.planes * all * p.width.input;
    columns = Divide(p.width.input, threads);
    groups = Divide(all, threads);
  }
  /// Most windows of an axis over one input.
  static int reach(const PoolPlaneAxis& a) { return (a.kernel + a.stride - 1) / a.stride; }
};

/// The windows over one column of inputs: `last`, last - 1, ..., as far as they are there.
template <int kReach>
struct ColumnWindows {
  int last, tap;  ///< tap of the last: the column's distance from where it starts
  bool is[kReach];
  __device__ ColumnWindows(const PoolPlaneAxis& a, int column) {
    last = (column + a.before) / a.stride;
    tap = column + a.before - last * a.stride;
#pragma unroll
    for (int j = 0; j < kReach; ++j) {
      is[j] = tap + j * a.stride < a.kernel && static_cast<unsigned>(last - j) < static_cast<unsigned>(a.output);
    }
  }
};

/// What a row of windows gives the column: the sum of their averages' gradients.
template <class T>
struct AverageMarch {
  using Element = T;
  using Value = Accumulator<T>;
  const T* g;
  template <int kReach>
  struct Columns : ColumnWindows<kReach> {
    Value share[kReach];  ///< of a window's gradient, of its width
    __device__ Columns(const PoolPlanes& p, int column) : ColumnWindows<kReach>(p.width, column) {
#pragma unroll
      for (int j = 0; j < kReach; ++j) share[j] = share_of(p, p.width, this->last - j, 1);
    }
  };
  __device__ static Value share_of(const PoolPlanes& p, const PoolPlaneAxis& a, int window, Value overridden) {
    if (p.divisor_override != 0) return overridden;
    return Value(1) / static_cast<Value>(a.count(a.start(window), p.count_include_pad));
  }
  template <int kReach>
  using Row = Value;
  template <int kReach>
  __device__ __forceinline__ Value load(const PoolPlanes& p, const Columns<kReach>& windows, int64_t first,
                                        int row) const {
    if (static_cast<unsigned>(row) >= static_cast<unsigned>(p.height.output)) return 0;
    const T* const from = g + first + row * p.width.output + windows.last;
    Value sum = 0;
#pragma unroll
    for (int j = kReach - 1; j >= 0; --j) {
      if (windows.is[j]) sum += to_accumulator(from[-j]) * windows.share[j];
    }
    return sum * share_of(p, p.height, row, Value(1) / static_cast<Value>(p.divisor_override));
  }
  /// Of the row whose tap is over the input.
  __device__ __forceinline__ static Value take(const PoolPlanes& p, Value sum, int tap) {
    return tap < p.height.kernel ? sum : Value(0);
  }
};

template <int kReach, class F>
__global__ void __launch_bounds__(kMapThreads)
    average_march_kernel(const __grid_constant__ PoolPlanes p, const __grid_constant__ PoolMarch march,
                         const __grid_constant__ F f, typename F::Element* x) {
  using T = typename F::Element;
  constexpr int kStrides = PoolMarch::kStrides, kRows = kStrides + kReach - 1;
  int64_t plane = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (plane >= march.threads) return;
  const int column = static_cast<int>(march.columns.split(plane));
  const int first = static_cast<int>(march.groups.split(plane)) * kStrides;
  const typename F::template Columns<kReach> windows(p, column);
  typename F::template Row<kReach> rows[kRows];
#pragma unroll
  for (int t = 0; t < kRows; ++t) {
    rows[t] = f.template load<kReach>(p, windows, plane * p.outputs(), first + t - (kReach - 1));
  }
  T* const out = x + plane * p.inputs() + column;
#pragma unroll
  for (int t = 0; t < kStrides; ++t) {
    const int start = p.height.start(first + t);
    for (int tap = max(0, -start); tap < min(p.height.stride, p.height.input - start); ++tap) {
      typename F::Value sum = 0;
#pragma unroll
      for (int j = kReach - 1; j >= 0; --j) sum += f.take(p, rows[t + kReach - 1 - j], tap + j * p.height.stride);
      out[(start + tap) * p.width.input] = from_accumulator<T>(sum);
    }
  }
}

/// Launches `f` over the inputs of `problem`; false, and nothing done, where marches do not serve.
template <class F>
bool average_march(const char* name, const PoolProblem& problem, const F& f, typename F::Element* x,
                   cudaStream_t stream) {
  const auto planes = PoolPlanes::of(problem);
  if (!planes) return false;
  const int reach = std::max(PoolMarch::reach(planes->height), PoolMarch::reach(planes->width));
  const PoolMarch march(*planes);
  const int64_t blocks = (march.threads + kMapThreads - 1) / kMapThreads;
  if (reach > 3 || blocks > INT32_MAX) return false;
  const auto kernel = reach > 2 ? average_march_kernel<3, F> : average_march_kernel<2, F>;
  launch(name, kernel, static_cast<unsigned>(blocks), kMapThreads, 0, stream, *planes, march, f, x);
  return true;
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
  if (x.numel() == 0) return;
  dispatch_floating(kName, g.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const up = g.data<T>();
    const DeviceScope scope(x.device());
    if (average_march(kName, problem, AverageMarch<T>{up}, x.data<T>(), scope.stream())) return;
    generate<1>(kName, AverageBackward<T>{PoolSizes(problem), up}, Elements<T>{x});
  });
}

}  // namespace halo::cuda
