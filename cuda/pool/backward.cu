// Pooling backward. A block has a tile of inputs, built in shared memory from the gradients of all windows over it,
// which wait there, too. Where windows do not allow for tiles, a thread an input visits the windows over it. Either way
// the order of the sums is fixed.
#include <halo/ops/pool_backend.h>

#include "../device/map.cuh"
#include "../device/number.cuh"
#include "../device/stage_run.cuh"
#include "backward_tile.cuh"
#include "cell_tile.cuh"
#include "dispatch.h"
#include "sizes.cuh"

namespace halo::cuda {
namespace {

using device::Accumulator;
using device::from_accumulator;
using device::to_accumulator;

/// Maxima: each window's gradient is added where its maximum was. Windows so far apart that they do not meet go
/// together, a phase.
template <class T>
struct MaximumTile {
  static constexpr int kThreads = kBackwardThreads<T>;
  using Element = T;
  using Value = Accumulator<T>;
  using Image = Value;  ///< what the tile's results are gathered in
  const T* g;
  const uint8_t* offsets;

  struct Places {
    int image, g, offsets, barrier, end;
    Places(const PoolPlanes& p, const BackwardTiling& t) {
      SharedPieces pieces;
      image = pieces.take(static_cast<int64_t>(device::staged_bytes<T>(t.inputs(p)) * (sizeof(Image) / sizeof(T))));
      g = pieces.take(static_cast<int64_t>(device::copied_bytes<T>(t.outputs(p))), device::kLine);
      offsets = pieces.take(static_cast<int64_t>(device::copied_bytes<uint8_t>(t.outputs(p))), device::kLine);
      barrier = pieces.take(sizeof(uint64_t));
      end = pieces.end();
    }
  };

  __device__ void fill(const PoolPlanes& p, const BackwardTiling& t, const BackwardTile& tile, unsigned char* shared,
                       const Places& places, Image* image) const {
    const int down = t.reach, across = reach_of(p.width), thread = static_cast<int>(threadIdx.x);
    device::RunStage<kThreads> stage(*reinterpret_cast<uint64_t*>(shared + places.barrier), 2);
    const T* const up = stage.copy(shared + places.g, g + tile.begin(p), tile.count(p), tile.behind(p));
    const uint8_t* const taps =
        stage.copy(shared + places.offsets, offsets + tile.begin(p), tile.count(p), tile.behind(p));
    for (int at = thread * 16; at < places.g; at += kThreads * 16) {
      *reinterpret_cast<int4*>(shared + places.image + at) = int4{0, 0, 0, 0};
    }
    stage.wait();
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

/// Averages: each window's share of its gradient waits for the inputs under it, with zeros around, and a thread marches
/// down the cells of a column, with the sums of the windows' rows in registers.
template <class T>
struct AverageTile {
  static constexpr int kThreads = kBackwardThreads<T>;
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
    // Groups of cells, none of them empty: windows behind the last would be read.
    const int most = max(kThreads / (tile.planes * p.width.input), 1), cells = (t.cells + most - 1) / most;
    const int groups = (t.cells + cells - 1) / cells;
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

template <class F>
__global__ void __launch_bounds__(F::kThreads)
    tile_backward_kernel(const __grid_constant__ PoolPlanes p, const __grid_constant__ BackwardTiling t,
                         const __grid_constant__ F f, const __grid_constant__ typename F::Places places,
                         typename F::Element* x) {
  extern __shared__ __align__(device::kLine) unsigned char shared[];
  const BackwardTile tile(p, t);
  typename F::Element* const run = x + tile.first_plane * p.inputs() + int64_t{tile.top} * p.width.input;
  auto* const image = device::staged_place<typename F::Image>(shared + places.image, run);
  f.fill(p, t, tile, shared, places, image);
  __syncthreads();
  device::store_run<F::kThreads>(image, run, tile.planes * tile.rows * p.width.input);
}

/// Launches `f` over the inputs of `planes`; false, and nothing done, where tiles do not serve.
template <class F>
bool by_tiles(const char* name, const PoolPlanes& planes, const BackwardTiling& tiling, typename F::Element* x,
              cudaStream_t stream, const F& f) {
  const typename F::Places places(planes, tiling);
  if (places.end > BackwardTiling::kMostBytes || tiling.blocks > INT32_MAX) return false;
  launch(name, tile_backward_kernel<F>, static_cast<unsigned>(tiling.blocks), F::kThreads,
         static_cast<std::size_t>(places.end), stream, planes, tiling, f, places, x);
  return true;
}

template <class T>
bool maxima_by_tiles(const char* name, const PoolPlanes& planes, T* x, cudaStream_t stream, const T* g,
                     const uint8_t* offsets) {
  const BackwardTiling tiling(planes, sizeof(T), kBackwardThreads<T>);
  if (CellTile<T, true>::serves(planes)) {
    return planes.width.kernel == 3
               ? by_tiles(name, planes, tiling, x, stream, CellTile<T, true, 3>(planes, tiling, g, offsets))
               : by_tiles(name, planes, tiling, x, stream, CellTile<T, true, 2>(planes, tiling, g, offsets));
  }
  return by_tiles(name, planes, tiling, x, stream, MaximumTile<T>{g, offsets});
}

template <class T>
bool averages_by_tiles(const char* name, const PoolPlanes& planes, T* x, cudaStream_t stream, const T* g) {
  const BackwardTiling tiling(planes, sizeof(T), kBackwardThreads<T>);
  if (CellTile<T, false>::serves(planes)) {
    return by_tiles(name, planes, tiling, x, stream, CellTile<T, false>(planes, tiling, g));
  }
  return AverageTile<T>::serves(planes) && by_tiles(name, planes, tiling, x, stream, AverageTile<T>(planes, g));
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
