// Pooling backward. Where few windows lie over an input, a block has a tile of inputs, and the gradients of all windows
// over it in shared memory. Elsewhere a thread an input visits the windows over it. Either way the windows come in
// their order, so that the bits of the sums are fixed.
#include <halo/ops/pool_backend.h>

#include <algorithm>
#include <utility>

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
constexpr int kStrides = 4;  // of a thread, one below the other; a stride: the inputs whose last window is the same

/// Windows of an axis over one input, at most.
int reach_of(const PoolPlaneAxis& a) { return (a.kernel + a.stride - 1) / a.stride; }

/// How blocks cut planes: so many strides of rows, of one plane unless it fits whole.
struct BackwardTiling {
  static constexpr int64_t kInputs = 6144, kMostBytes = 96 * 1024;
  int planes = 1, strides, groups;  ///< groups of kStrides in a tile
  int64_t staged;                   ///< outputs of a tile, at most
  int64_t inputs;                   ///< of a tile, at most
  int columns_bytes, shares_bytes;  ///< of the tables before what is staged
  FastDivide by_columns, by_groups;
  Divide tiles;
  int64_t blocks;

  BackwardTiling(const PoolPlanes& p, int reach, std::size_t column, std::size_t share) {
    const PoolPlaneAxis& a = p.height;
    const int64_t all = (int64_t{a.input} + a.before + a.stride - 1) / a.stride;
    strides = static_cast<int>(std::clamp<int64_t>(kInputs / p.width.input / a.stride, 1, all));
    if (strides == all) {
      planes = static_cast<int>(std::clamp<int64_t>(kInputs / p.inputs(), 1, 64));
    } else {
      strides = std::max(strides / kStrides, 1) * kStrides;
    }
    staged =
        planes > 1 ? int64_t{planes} * p.outputs() : std::min<int64_t>(strides + reach - 1, a.output) * p.width.output;
    inputs = planes > 1 ? int64_t{planes} * p.inputs()
                        : std::min<int64_t>(int64_t{strides} * a.stride, a.input) * p.width.input;
    groups = (strides + kStrides - 1) / kStrides;
    by_columns = FastDivide(static_cast<uint32_t>(p.width.input));
    by_groups = FastDivide(static_cast<uint32_t>(groups));
    const int64_t down = (all + strides - 1) / strides;
    blocks = (p.planes + planes - 1) / planes * down;
    tiles = Divide(down, blocks);
    const auto whole = [](int64_t bytes) { return static_cast<int>((bytes + 15) / 16 * 16); };
    columns_bytes = whole(int64_t{p.width.input} * static_cast<int64_t>(column));
    shares_bytes = whole(int64_t{strides + reach} * static_cast<int64_t>(share));
  }
  bool serves() const { return columns_bytes + staged * 9 + inputs * 8 <= kMostBytes && blocks <= INT32_MAX; }
  /// Of shared memory; `input`, `output`: staged for each.
  std::size_t bytes(std::size_t input, std::size_t output) const {
    return static_cast<std::size_t>(columns_bytes + shares_bytes + 96) + static_cast<std::size_t>(staged) * output +
           static_cast<std::size_t>(inputs) * input;
  }
};

/// The windows over input i of an axis are last - j, j < kReach, of which it is tap `tap` + j stride; has(a, j): such a
/// window is there and reaches so far.
struct WindowsOver {
  int last, tap;
  __device__ WindowsOver(const PoolPlaneAxis& a, int i) {
    last = (i + a.before) / a.stride;
    tap = i + a.before - last * a.stride;
  }
  __device__ bool has(const PoolPlaneAxis& a, int j) const {
    return tap + j * a.stride < a.kernel && static_cast<unsigned>(last - j) < static_cast<unsigned>(a.output);
  }
};

/// What a row of windows gives the inputs of a column: the sum of their averages' gradients.
template <class T, int kReachOf>
struct AverageRows {
  using Element = T;
  using Value = Accumulator<T>;
  using Row = Value;
  static constexpr int kReach = kReachOf;
  static constexpr std::size_t kBytes = sizeof(T);  ///< staged for an output
  /// Of a column, found once for a block.
  struct Column {
    Value share[kReach];  ///< of a window's gradient, of its width; 0: no such window
    int at[kReach];       ///< the window's column, or one that can be read
  };
  const T* g;

  __device__ void stage(unsigned char* shared, int64_t first, int count, int) {
    g = device::stage_run<kThreads>(shared, g + first, count);
  }
  __device__ static Column column_of(const PoolPlanes& p, int column) {
    const WindowsOver over(p.width, column);
    Column found;
#pragma unroll
    for (int j = 0; j < kReach; ++j) {
      const bool has = over.has(p.width, j);
      const int count = p.width.count(p.width.start(over.last - j), p.count_include_pad);
      found.at[j] = has ? over.last - j : 0;
      found.share[j] = !has ? Value(0) : p.divisor_override != 0 ? Value(1) : Value(1) / static_cast<Value>(count);
    }
    return found;
  }
  /// The share of a window's gradient, of its height.
  __device__ static Value row_share(const PoolPlanes& p, int row) {
    if (p.divisor_override != 0) return Value(1) / static_cast<Value>(p.divisor_override);
    return Value(1) / static_cast<Value>(p.height.count(p.height.start(row), p.count_include_pad));
  }
  __device__ __forceinline__ static Row none() { return 0; }
  /// `at`: where the row of windows is staged.
  __device__ __forceinline__ Row load(const Column& column, int at, Value row_share) const {
    Value sum = 0;
#pragma unroll
    for (int j = kReach - 1; j >= 0; --j) {
      const Value part = to_accumulator(g[at + column.at[j]]) * column.share[j];
      if (column.share[j] != 0) sum += part;
    }
    return sum * row_share;
  }
  __device__ __forceinline__ static Value take(Row row, int) { return row; }
};

/// What a row of windows gives: each its gradient to the input where its maximum was.
template <class T, int kReachOf>
struct MaximumRows {
  using Element = T;
  using Value = Accumulator<T>;
  static constexpr int kReach = kReachOf;
  static constexpr std::size_t kBytes = sizeof(T) + 1;
  struct Row {
    Value gradient[kReach];
    int tap[kReach];  ///< the tap of the maximum less that of the column in the first row; none: negative
  };
  struct Column {
    int at[kReach], tap[kReach];  ///< tap: beyond all where there is no such window
  };
  const T* g;
  const uint8_t* offsets;

  __device__ void stage(unsigned char* shared, int64_t first, int count, int room) {
    g = device::stage_run<kThreads>(shared, g + first, count);
    offsets = device::stage_run<kThreads>(shared + room, offsets + first, count);
  }
  __device__ static Column column_of(const PoolPlanes& p, int column) {
    const WindowsOver over(p.width, column);
    Column found;
#pragma unroll
    for (int j = 0; j < kReach; ++j) {
      const bool has = over.has(p.width, j);
      found.at[j] = has ? over.last - j : 0;
      found.tap[j] = has ? over.tap + j * p.width.stride : 1 << 16;
    }
    return found;
  }
  __device__ static Value row_share(const PoolPlanes&, int) { return 1; }
  __device__ __forceinline__ static Row none() {
    Row row{};
#pragma unroll
    for (int& tap : row.tap) tap = -1;
    return row;
  }
  __device__ __forceinline__ Row load(const Column& column, int at, Value) const {
    Row row;
#pragma unroll
    for (int j = 0; j < kReach; ++j) {
      row.gradient[j] = to_accumulator(g[at + column.at[j]]);
      row.tap[j] = offsets[at + column.at[j]] - column.tap[j];
    }
    return row;
  }
  /// `tap`: the flat tap of the row's first column.
  __device__ __forceinline__ static Value take(const Row& row, int tap) {
    Value sum = 0;
#pragma unroll
    for (int j = kReach - 1; j >= 0; --j) {
      if (row.tap[j] == tap) sum += row.gradient[j];
    }
    return sum;
  }
};

/// All inputs of a tile: a thread marches down the strides of a column, with what the windows' rows give it in
/// registers. Shared memory: columns, shares of rows, the results, and what is
/// staged. kStride: of the height; 0: any.
template <int kStride, class F>
__global__ void __launch_bounds__(kThreads)
    tile_backward_kernel(const __grid_constant__ PoolPlanes p, const __grid_constant__ BackwardTiling t, F f,
                         typename F::Element* x) {
  using T = typename F::Element;
  using Value = typename F::Value;
  constexpr int kReach = F::kReach;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* const columns = reinterpret_cast<typename F::Column*>(shared);
  auto* const shares = reinterpret_cast<Value*>(shared + t.columns_bytes);
  unsigned char* const results = shared + t.columns_bytes + t.shares_bytes;
  unsigned char* const staged = results + device::staged_bytes<T>(t.inputs);
  int64_t first_plane = blockIdx.x;
  const int first_stride = static_cast<int>(t.tiles.split(first_plane)) * t.strides;
  first_plane *= t.planes;
  const int planes = static_cast<int>(min(int64_t{t.planes}, p.planes - first_plane));
  const int top = planes > 1 ? 0 : max(first_stride - (kReach - 1), 0);  // the first row of windows that is staged
  const int rows = planes > 1 ? p.height.output : max(min(first_stride + t.strides, p.height.output) - top, 0);
  f.stage(staged, first_plane * p.outputs() + top * p.width.output, planes * rows * p.width.output,
          static_cast<int>(device::staged_bytes<T>(t.staged)));
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < p.width.input; i += kThreads) columns[i] = F::column_of(p, i);
  for (int i = thread; i < rows; i += kThreads) shares[i] = F::row_share(p, top + i);
  device::copy_async_wait_all();
  __syncthreads();
  const int stride = kStride > 0 ? kStride : p.height.stride;
  const int top_input = max(p.height.start(first_stride), 0);
  const int end_input = min(p.height.start(first_stride + t.strides), p.height.input);
  T* const run = x + first_plane * p.inputs() + int64_t{top_input} * p.width.input;
  T* const image = device::staged_place(results, run);
  const int units = planes * t.groups * p.width.input;
  for (int unit = thread; unit < units; unit += kThreads) {
    uint32_t column, group;
    const int plane =
        static_cast<int>(t.by_groups.divide(t.by_columns.divide(static_cast<uint32_t>(unit), column), group));
    const typename F::Column windows = columns[column];
    const int first = first_stride + static_cast<int>(group) * kStrides;
    int at = (plane * rows + first - (kReach - 1) - top) * p.width.output, row = first - (kReach - 1) - top;
    const auto next = [&] {
      typename F::Row found = F::none();
      if (static_cast<unsigned>(row) < static_cast<unsigned>(rows)) found = f.load(windows, at, shares[row]);
      ++row;
      at += p.width.output;
      return found;
    };
    typename F::Row held[kReach];  // of windows s, s - 1, ...
#pragma unroll
    for (int r = kReach - 1; r > 0; --r) held[r - 1] = next();
    int to = p.height.start(first);  // the input's row
    T* out = image + plane * p.inputs() + (to - top_input) * p.width.input + static_cast<int>(column);
#pragma unroll
    for (int k = 0; k < kStrides; ++k) {
#pragma unroll
      for (int r = kReach - 1; r > 0; --r) held[r] = held[r - 1];
      held[0] = next();
#pragma unroll(kStride > 0 ? kStride : 1)
      for (int tap = 0; tap < stride; ++tap, ++to, out += p.width.input) {
        Value sum = 0;
#pragma unroll
        for (int r = kReach - 1; r >= 0; --r) {
          const int own = tap + r * stride;
          if (own < p.height.kernel) sum += F::take(held[r], own * p.width.kernel);
        }
        if (to >= top_input && to < end_input) *out = from_accumulator<T>(sum);
      }
    }
  }
  __syncthreads();
  device::store_run<kThreads>(image, run, planes > 1 ? planes * p.inputs() : (end_input - top_input) * p.width.input);
}

/// Launches F{args...} over the inputs of `problem`; false, and nothing done, where tiles do not serve.
template <template <class, int> class F, class T, class... Args>
bool by_tiles(const char* name, const PoolProblem& problem, T* x, cudaStream_t stream, Args... args) {
  const auto planes = PoolPlanes::of(problem);
  if (!planes) return false;
  const int needed = std::max(reach_of(planes->height), reach_of(planes->width));
  const auto run = [&]<int kReach, int kStride>(std::integer_sequence<int, kReach, kStride>) {
    using Rows = F<T, kReach>;
    const BackwardTiling tiling(*planes, kReach, sizeof(typename Rows::Column), sizeof(typename Rows::Value));
    if (!tiling.serves()) return false;
    launch(name, tile_backward_kernel<kStride, Rows>, static_cast<unsigned>(tiling.blocks), kThreads,
           tiling.bytes(sizeof(T), Rows::kBytes), stream, *planes, tiling, Rows{args...}, x);
    return true;
  };
  if (needed <= 2 && planes->height.stride == 2) return run(std::integer_sequence<int, 2, 2>{});
  return needed <= 3 && run(std::integer_sequence<int, 3, 0>{});
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
                    if (by_tiles<MaximumRows>(kName, problem, x.data<T>(), scope.stream(), up, at)) return;
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
    if (by_tiles<AverageRows>(kName, problem, x.data<T>(), scope.stream(), up)) return;
    generate<1>(kName, AverageBackward<T>{PoolSizes(problem), up}, Elements<T>{x});
  });
}

}  // namespace halo::cuda
