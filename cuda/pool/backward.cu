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

/// Windows first ... last.
struct WindowRange {
  int first, last;
};

/// Those over input i of an axis.
__device__ WindowRange windows_over(const PoolPlaneAxis& a, int i) {
  const int beyond = i + a.before - a.kernel;  // a window that starts so far back ends before i
  return {beyond < 0 ? 0 : beyond / a.stride + 1, min((i + a.before) / a.stride, a.output - 1)};
}

/// How blocks cut planes: so many rows of inputs, of one plane unless it fits whole.
struct BackwardTiling {
  static constexpr int64_t kInputs = 6144, kMostBytes = 96 * 1024;
  int planes = 1, rows;  ///< inputs' rows of a plane in a tile
  int window_rows;       ///< over them, at most
  FastDivide by_columns, by_kernel, by_phase_rows, by_phase_columns;
  Divide tiles;
  int64_t blocks;

  explicit BackwardTiling(const PoolPlanes& p) {
    const PoolPlaneAxis& a = p.height;
    rows = static_cast<int>(std::clamp<int64_t>(kInputs / p.width.input, 1, a.input));
    if (rows == a.input) planes = static_cast<int>(std::clamp<int64_t>(kInputs / p.inputs(), 1, 64));
    window_rows = rows == a.input ? a.output : std::min((rows - 1) / a.stride + reach_of(a) + 1, a.output);
    by_columns = FastDivide(static_cast<uint32_t>(p.width.input));
    by_kernel = FastDivide(static_cast<uint32_t>(p.width.kernel));
    const auto phase = [](int windows, int reach) {
      return FastDivide(static_cast<uint32_t>((windows + reach - 1) / reach));
    };
    by_phase_rows = phase(window_rows, reach_of(a));
    by_phase_columns = phase(p.width.output, reach_of(p.width));
    const int64_t down = (a.input + rows - 1) / rows;
    blocks = (p.planes + planes - 1) / planes * down;
    tiles = Divide(down, blocks);
  }
  HALO_HOST_DEVICE int64_t inputs(const PoolPlanes& p) const { return int64_t{planes} * rows * p.width.input; }
  HALO_HOST_DEVICE int64_t outputs(const PoolPlanes& p) const { return int64_t{planes} * window_rows * p.width.output; }
};

/// Shared memory, taken piece by piece; the first goes to the kernel's beginning.
struct SharedPieces {
  int64_t bytes = 0;
  HALO_HOST_DEVICE int64_t take(int64_t more) {
    const int64_t at = bytes;
    bytes += (more + 15) / 16 * 16;
    return at;
  }
};

/// What a block works on: rows top ... top + rows - 1 of `planes` planes, under rows first_window ... of windows.
struct BackwardTile {
  int64_t first_plane;
  int planes, top, rows, first_window, window_rows;
  __device__ BackwardTile(const PoolPlanes& p, const BackwardTiling& t) : first_plane(blockIdx.x) {
    top = static_cast<int>(t.tiles.split(first_plane)) * t.rows;
    first_plane *= t.planes;
    planes = static_cast<int>(min(int64_t{t.planes}, p.planes - first_plane));
    rows = min(t.rows, p.height.input - top);
    const bool whole = t.rows == p.height.input;
    first_window = whole ? 0 : windows_over(p.height, top).first;
    window_rows = whole ? p.height.output : max(windows_over(p.height, top + rows - 1).last + 1 - first_window, 0);
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
    int64_t image, g, offsets, end;
    HALO_HOST_DEVICE Places(const PoolPlanes& p, const BackwardTiling& t) {
      SharedPieces pieces;
      image = pieces.take(static_cast<int64_t>(device::staged_bytes<T>(t.inputs(p)) * (sizeof(Image) / sizeof(T))));
      g = pieces.take(static_cast<int64_t>(device::staged_bytes<T>(t.outputs(p))));
      offsets = pieces.take(static_cast<int64_t>(device::staged_bytes<uint8_t>(t.outputs(p))));
      end = pieces.bytes;
    }
  };

  __device__ void fill(const PoolPlanes& p, const BackwardTiling& t, const BackwardTile& tile, unsigned char* shared,
                       const Places& places, Image* image) const {
    const int64_t begin = tile.first_plane * p.outputs() + tile.first_window * p.width.output;
    const int count = tile.planes * tile.window_rows * p.width.output, thread = static_cast<int>(threadIdx.x);
    const T* const up = device::stage_run<kThreads>(shared + places.g, g + begin, count);
    const uint8_t* const taps = device::stage_run<kThreads>(shared + places.offsets, offsets + begin, count);
    for (int64_t at = thread * 16; at < places.g; at += kThreads * 16) {
      *reinterpret_cast<int4*>(shared + at) = int4{0, 0, 0, 0};
    }
    device::copy_async_wait_all();
    const int down = reach_of(p.height), across = reach_of(p.width);
    const int units = tile.planes * static_cast<int>(t.by_phase_rows.divisor * t.by_phase_columns.divisor);
    for (int phase_row = 0; phase_row < down; ++phase_row) {
      for (int phase_column = 0; phase_column < across; ++phase_column) {
        __syncthreads();
        for (int unit = thread; unit < units; unit += kThreads) {
          uint32_t m, k;
          const int plane =
              static_cast<int>(t.by_phase_rows.divide(t.by_phase_columns.divide(static_cast<uint32_t>(unit), m), k));
          const int row = static_cast<int>(k) * down + phase_row, column = static_cast<int>(m) * across + phase_column;
          if (row >= tile.window_rows || column >= p.width.output) continue;
          const int at = (plane * tile.window_rows + row) * p.width.output + column;
          uint32_t tap_column;
          const int tap_row = static_cast<int>(t.by_kernel.divide(taps[at], tap_column));
          const int to = p.height.start(tile.first_window + row) + tap_row - tile.top;
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

/// Averages: what a row of windows gives each column, then the sum of the rows of windows over an input.
template <class T>
struct AverageTile {
  using Element = T;
  using Value = Accumulator<T>;
  using Image = T;
  const T* g;

  struct Places {
    int64_t image, g, rows, row_windows, column_windows, row_shares, column_shares, end;
    HALO_HOST_DEVICE Places(const PoolPlanes& p, const BackwardTiling& t) {
      constexpr auto kValue = static_cast<int64_t>(sizeof(Value)), kRange = static_cast<int64_t>(sizeof(WindowRange));
      SharedPieces pieces;
      image = pieces.take(static_cast<int64_t>(device::staged_bytes<T>(t.inputs(p))));
      g = pieces.take(static_cast<int64_t>(device::staged_bytes<T>(t.outputs(p))));
      rows = pieces.take(kValue * t.planes * t.window_rows * p.width.input);
      row_windows = pieces.take(kRange * t.planes * t.rows);
      column_windows = pieces.take(kRange * p.width.input);
      row_shares = pieces.take(kValue * t.planes * t.window_rows);
      column_shares = pieces.take(kValue * p.width.output);
      end = pieces.bytes;
    }
  };

  __device__ void fill(const PoolPlanes& p, const BackwardTiling& t, const BackwardTile& tile, unsigned char* shared,
                       const Places& places, Image* image) const {
    const int64_t begin = tile.first_plane * p.outputs() + tile.first_window * p.width.output;
    const int window_rows = tile.planes * tile.window_rows, thread = static_cast<int>(threadIdx.x);
    const T* const up = device::stage_run<kThreads>(shared + places.g, g + begin, window_rows * p.width.output);
    auto* const of_rows = reinterpret_cast<Value*>(shared + places.rows);
    auto* const row_windows = reinterpret_cast<WindowRange*>(shared + places.row_windows);
    auto* const column_windows = reinterpret_cast<WindowRange*>(shared + places.column_windows);
    auto* const row_shares = reinterpret_cast<Value*>(shared + places.row_shares);
    auto* const column_shares = reinterpret_cast<Value*>(shared + places.column_shares);
    for (int i = thread; i < tile.planes * tile.rows; i += kThreads) {
      const int plane = i / tile.rows, before = plane * tile.window_rows - tile.first_window;
      const WindowRange range = windows_over(p.height, tile.top + i - plane * tile.rows);
      row_windows[i] = {range.first + before, range.last + before};
    }
    for (int i = thread; i < p.width.input; i += kThreads) column_windows[i] = windows_over(p.width, i);
    const auto share = [&](const PoolPlaneAxis& a, int window) {
      return Value(1) / static_cast<Value>(a.count(a.start(window), p.count_include_pad));
    };
    const bool given = p.divisor_override != 0;
    for (int i = thread; i < window_rows; i += kThreads) {
      row_shares[i] = given ? Value(1) / static_cast<Value>(p.divisor_override)
                            : share(p.height, tile.first_window + i % tile.window_rows);
    }
    for (int i = thread; i < p.width.output; i += kThreads) column_shares[i] = given ? Value(1) : share(p.width, i);
    device::copy_async_wait_all();
    __syncthreads();
    uint32_t column;
    for (int i = thread; i < window_rows * p.width.input; i += kThreads) {
      const int row = static_cast<int>(t.by_columns.divide(static_cast<uint32_t>(i), column));
      const WindowRange over = column_windows[column];
      const T* const from = up + row * p.width.output;
      Value sum = 0;
      for (int w = over.first; w <= over.last; ++w) sum += to_accumulator(from[w]) * column_shares[w];
      of_rows[i] = sum * row_shares[row];
    }
    __syncthreads();
    for (int i = thread; i < tile.planes * tile.rows * p.width.input; i += kThreads) {
      const int row = static_cast<int>(t.by_columns.divide(static_cast<uint32_t>(i), column));
      const WindowRange over = row_windows[row];
      const Value* const from = of_rows + column;
      Value sum = 0;
      for (int w = over.first; w <= over.last; ++w) sum += from[w * p.width.input];
      image[i] = from_accumulator<T>(sum);
    }
  }
};

template <class F>
__global__ void __launch_bounds__(kThreads)
    tile_backward_kernel(const __grid_constant__ PoolPlanes p, const __grid_constant__ BackwardTiling t,
                         const __grid_constant__ F f, typename F::Element* x) {
  extern __shared__ __align__(16) unsigned char shared[];
  const BackwardTile tile(p, t);
  const typename F::Places places(p, t);
  typename F::Element* const run = x + tile.first_plane * p.inputs() + int64_t{tile.top} * p.width.input;
  auto* const image = device::staged_place<typename F::Image>(shared + places.image, run);
  f.fill(p, t, tile, shared, places, image);
  __syncthreads();
  device::store_run<kThreads>(image, run, tile.planes * tile.rows * p.width.input);
}

/// Launches `f` over the inputs of `problem`; false, and nothing done, where tiles do not serve.
template <class F>
bool by_tiles(const char* name, const PoolProblem& problem, typename F::Element* x, cudaStream_t stream, const F& f) {
  const auto planes = PoolPlanes::of(problem);
  if (!planes || planes->outputs() == 0) return false;
  const BackwardTiling tiling(*planes);
  const typename F::Places places(*planes, tiling);
  if (places.end > BackwardTiling::kMostBytes || tiling.blocks > INT32_MAX) return false;
  launch(name, tile_backward_kernel<F>, static_cast<unsigned>(tiling.blocks), kThreads,
         static_cast<std::size_t>(places.end), stream, *planes, tiling, f, x);
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
  if (x.numel() == 0) return;
  dispatch_pool(kName, g.dtype(), problem.offset_dtype(),
                [&]<class T, class Offset>(std::type_identity<T>, std::type_identity<Offset>) {
                  const T* const up = g.data<T>();
                  const Offset* const at = offsets.data<Offset>();
                  if constexpr (sizeof(Offset) == 1) {
                    const DeviceScope scope(x.device());
                    if (by_tiles(kName, problem, x.data<T>(), scope.stream(), MaximumTile<T>{up, at})) return;
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
    if (by_tiles(kName, problem, x.data<T>(), scope.stream(), AverageTile<T>{up})) return;
    generate<1>(kName, AverageBackward<T>{PoolSizes(problem), up}, Elements<T>{x});
  });
}

}  // namespace halo::cuda
