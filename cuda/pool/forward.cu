// Pooling forward, and gathering by where the maxima were. Planes whose windows fit in shared memory go by tiles: a
// block has whole rows of outputs and all inputs under them. Elsewhere a thread an output.
#include <halo/ops/pool_backend.h>

#include "../device/exponential.cuh"
#include "../device/map.cuh"
#include "../device/number.cuh"
#include "../device/stage_run.cuh"
#include "../runtime/data.h"
#include "dispatch.h"
#include "forward_tile.h"
#include "plane.h"
#include "sizes.cuh"

namespace halo::cuda {
namespace {

using device::Accumulator;
using device::from_accumulator;
using device::to_accumulator;

/// The running maximum of a window: the first largest, and a NaN is larger than anything.
template <class T, class Tap>
struct Best {
  T value;
  Tap tap;
  __device__ void take(T next, Tap next_tap) {
    const bool better = !(next <= value) && value == value;
    value = better ? next : value;
    tap = better ? next_tap : tap;
  }
};

/// The same where nobody asks for the tap.
template <class T>
struct Largest {
  static constexpr int tap = 0;
  T value;
  Largest() = default;
  __device__ Largest(T first, int) : value(first) {}
  __device__ void take(T next, int) { value = device::maximum(value, next); }
};

/// visit(value, flat tap) for the inputs of the window at (top, left), in row-major order. kTaps 0: of any extent.
template <int kTaps, class T, class Visit>
__device__ __forceinline__ void each_tap(const PoolPlanes& p, const T* plane, int top, int left, Visit visit) {
  if constexpr (kTaps > 0) {
#pragma unroll
    for (int r = 0; r < kTaps; ++r) {
#pragma unroll
      for (int c = 0; c < kTaps; ++c) {
        if (static_cast<unsigned>(top + r) < static_cast<unsigned>(p.height.input) &&
            static_cast<unsigned>(left + c) < static_cast<unsigned>(p.width.input)) {
          visit(to_accumulator(plane[(top + r) * p.width.input + left + c]), r * kTaps + c);
        }
      }
    }
  } else {
    const int bottom = min(top + p.height.kernel, p.height.input), right = min(left + p.width.kernel, p.width.input);
    for (int row = max(top, 0); row < bottom; ++row) {
      for (int column = max(left, 0); column < right; ++column) {
        visit(to_accumulator(plane[row * p.width.input + column]), (row - top) * p.width.kernel + column - left);
      }
    }
  }
}

/// `kOffsets`: they are wanted.
template <class T, bool kOffsets>
struct PlaneMax {
  using Value = Accumulator<T>;
  using Row = std::conditional_t<kOffsets, Best<Value, int>, Largest<Value>>;
  T* y;
  uint8_t* offsets;

  static std::size_t image_bytes(int64_t outputs) {
    return device::staged_bytes<T>(outputs) + (kOffsets ? device::staged_bytes<uint8_t>(outputs) : 0);
  }
  /// The results of a tile, whose first is `begin`, in shared memory, and from there to where they belong.
  __device__ PlaneMax image(unsigned char* shared, int64_t begin, int64_t outputs) const {
    return {device::staged_place<T>(shared, y + begin),
            device::staged_place<uint8_t>(shared + device::staged_bytes<T>(outputs), offsets + begin)};
  }
  __device__ void flush(const PlaneMax& image, int64_t begin, int count) const {
    device::store_run<0>(image.y, y + begin, count);
    if constexpr (kOffsets) device::store_run<0>(image.offsets, offsets + begin, count);
  }

  /// Of a row of `kTaps` inputs.
  template <int kTaps>
  __device__ __forceinline__ static Row row(const T* at) {
    Row best{to_accumulator(at[0]), 0};
#pragma unroll
    for (int c = 1; c < kTaps; ++c) best.take(to_accumulator(at[c]), c);
    return best;
  }
  /// Of a window of as many rows.
  template <int kTaps>
  __device__ __forceinline__ void write(const PoolPlanes&, int, int, const Row (&rows)[kTaps], int i) const {
    Row best = rows[0];
#pragma unroll
    for (int r = 1; r < kTaps; ++r) best.take(rows[r].value, rows[r].tap + r * kTaps);
    store(best, i);
  }
  /// Of any window.
  template <int kTaps>
  __device__ __forceinline__ void write(const PoolPlanes& p, int top, int left, const T* plane, int i) const {
    Row best{-static_cast<Value>(INFINITY), max(-top, 0) * p.width.kernel + max(-left, 0)};
    each_tap<kTaps>(p, plane, top, left, [&](Value value, int tap) { best.take(value, tap); });
    store(best, i);
  }

 private:
  __device__ __forceinline__ void store(const Row& best, int i) const {
    if constexpr (kOffsets) offsets[i] = static_cast<uint8_t>(best.tap);
    y[i] = from_accumulator<T>(best.value);
  }
};

template <class T>
struct PlaneAverage {
  using Value = Accumulator<T>;
  using Row = Value;
  T* y;
  Value share;  ///< of each input in the average of a window without padding

  PlaneAverage(T* out, const PoolProblem& p)
      : y(out),
        share(Value(1) /
              static_cast<Value>(p.divisor_override != 0 ? p.divisor_override : p.axes[1].kernel * p.axes[2].kernel)) {}
  static std::size_t image_bytes(int64_t outputs) { return device::staged_bytes<T>(outputs); }
  __device__ PlaneAverage image(unsigned char* shared, int64_t begin, int64_t) const {
    PlaneAverage image = *this;
    image.y = device::staged_place<T>(shared, y + begin);
    return image;
  }
  __device__ void flush(const PlaneAverage& image, int64_t begin, int count) const {
    device::store_run<0>(image.y, y + begin, count);
  }

  template <int kTaps>
  __device__ __forceinline__ static Row row(const T* at) {
    Value sum = to_accumulator(at[0]);
#pragma unroll
    for (int c = 1; c < kTaps; ++c) sum += to_accumulator(at[c]);
    return sum;
  }
  template <int kTaps>
  __device__ __forceinline__ void write(const PoolPlanes&, int, int, const Row (&rows)[kTaps], int i) const {
    Value sum = rows[0];  // few values are as good in their own type
#pragma unroll
    for (int r = 1; r < kTaps; ++r) sum += rows[r];
    y[i] = from_accumulator<T>(sum * share);
  }
  template <int kTaps>
  __device__ __forceinline__ void write(const PoolPlanes& p, int top, int left, const T* plane, int i) const {
    double sum = 0;
    each_tap<kTaps>(p, plane, top, left, [&](Value value, int) { sum += value; });
    y[i] = from_accumulator<T>(static_cast<Value>(sum / p.divisor(top, left)));
  }
};

/// All outputs of a tile. Where windows are kTaps by kTaps and kStride rows apart, what a row gives serves the next
/// window, too; kTaps 0: any windows.
template <int kTaps, int kStride, class T, class F>
__global__ void __launch_bounds__(ForwardTiling::kMostThreads)
    tile_kernel(const __grid_constant__ PoolPlanes p, const __grid_constant__ ForwardTiling t, const T* x,
                const __grid_constant__ F f) {
  extern __shared__ __align__(device::kLine) unsigned char staged[];
  uint32_t down;
  const int64_t first_plane = int64_t{t.by_row_tiles.divide(blockIdx.x, down)} * t.planes;
  const int first_row = static_cast<int>(down) * t.rows;
  const int planes = static_cast<int>(min(int64_t{t.planes}, p.planes - first_plane));
  const int end_row = min(first_row + t.rows, p.height.output);
  const int top = max(p.height.start(first_row), 0);
  const int bottom = planes > 1 ? p.height.input : min(p.height.start(end_row - 1) + p.height.kernel, p.height.input);
  const int count = (planes - 1) * p.inputs() + max(bottom - top, 0) * p.width.input;
  __shared__ uint64_t barrier;
  device::RunStage<0> stage(barrier, 1);
  const int64_t begin = first_plane * p.inputs() + top * p.width.input;
  const T* const in = stage.copy(staged, x + begin, count, p.planes * p.inputs() - begin - count);
  const int64_t begin_output = first_plane * p.outputs() + first_row * p.width.output;
  const F image = f.image(staged + device::copied_bytes<T>(t.staged), begin_output, t.outputs);
  stage.wait();
  // Columns whose windows are whole first, so that their warps take no time for the others.
  const int wholes = planes * t.groups * t.whole, first_other = (wholes + 31) / 32 * 32;
  const int others = planes * static_cast<int>(t.by_other_groups.divisor) * (p.width.output - t.whole);
  for (int unit = static_cast<int>(threadIdx.x); unit < first_other + others; unit += static_cast<int>(blockDim.x)) {
    uint32_t column, group, line;
    int plane, each;
    if (unit < first_other) {
      if (unit >= wholes) continue;
      line = t.by_whole.divide(static_cast<uint32_t>(unit), column);
      column += static_cast<uint32_t>(t.first_whole);
      plane = static_cast<int>(t.by_groups.divide(line, group));
      each = t.each;
    } else {
      line = t.by_others.divide(static_cast<uint32_t>(unit - first_other), column);
      if (static_cast<int>(column) >= t.first_whole) column += static_cast<uint32_t>(t.whole);
      plane = static_cast<int>(t.by_other_groups.divide(line, group));
      each = t.each_other;
    }
    const T* const from = in + plane * p.inputs() - top * p.width.input;
    const int left = p.width.start(static_cast<int>(column)), begin = first_row + static_cast<int>(group) * each;
    const int end = min(begin + each, end_row);
    const int out = plane * p.outputs() - first_row * p.width.output + static_cast<int>(column);
    int inside = end, inside_end = end;  // rows whose windows are whole: a thread marches down these
    if constexpr (kTaps > 0) {
      if (left >= 0 && left + kTaps <= p.width.input) {
        inside = max(begin, (p.height.before + kStride - 1) / kStride);
        inside_end = min(end, (p.height.input + p.height.before - kTaps + kStride) / kStride);
      }
      if (inside < inside_end) {
        constexpr int kKept = kTaps > kStride ? kTaps - kStride : 0;
        typename F::Row rows[kTaps];
        const T* at = from + p.height.start(inside) * p.width.input + left;
        int to = out + inside * p.width.output;
#pragma unroll
        for (int r = 0; r < kKept; ++r, at += p.width.input) rows[r] = F::template row<kTaps>(at);
#pragma unroll 3
        for (int row = inside; row < inside_end; ++row, to += p.width.output) {
#pragma unroll
          for (int r = kKept; r < kTaps; ++r, at += p.width.input) rows[r] = F::template row<kTaps>(at);
          image.write(p, p.height.start(row), left, rows, to);
#pragma unroll
          for (int r = 0; r < kKept; ++r) rows[r] = rows[r + kStride];
        }
      }
    }
#pragma unroll 1
    for (int row = begin; row < end; ++row) {
      if (row == inside) row = max(inside, inside_end);
      if (row < end) {
        image.template write<kTaps>(p, p.height.start(row), left, from, out + row * p.width.output);
      }
    }
  }
  __syncthreads();
  f.flush(image, begin_output, planes > 1 ? planes * p.outputs() : (end_row - first_row) * p.width.output);
}

template <class T, class Offset>
struct MaxForward {
  PoolSizes sizes;
  const T* x;
  Offset* offsets;  ///< null: not wanted
  __device__ T operator()(int64_t i) const {
    using Value = Accumulator<T>;
    const PoolPlace place(sizes.output, i);
    const T* const plane = x + place.plane * sizes.input_positions();
    using Tap = std::conditional_t<sizeof(Offset) == 1, int, int64_t>;
    Best<Value, Tap> best{0, -1};
    OutputWindows(sizes, place).each(sizes, [&](auto at, auto flat_tap) {
      const Tap tap = static_cast<Tap>(flat_tap);
      const Value value = to_accumulator(plane[at]);
      if (best.tap < 0) best = {value, tap};
      best.take(value, tap);
    });
    if (offsets != nullptr) offsets[i] = static_cast<Offset>(best.tap);
    return from_accumulator<T>(best.value);
  }
};

template <class T>
struct AverageForward {
  PoolSizes sizes;
  const T* x;
  __device__ T operator()(int64_t i) const {
    const PoolPlace place(sizes.output, i);
    const T* const plane = x + place.plane * sizes.input_positions();
    const OutputWindows windows(sizes, place);
    double sum = 0;
    windows.each(sizes, [&](auto at, auto) { sum += static_cast<double>(to_accumulator(plane[at])); });
    return from_accumulator<T>(static_cast<Accumulator<T>>(sum / static_cast<double>(windows.divisor(sizes))));
  }
};

/// The flat position in the input plane of output i's maximum.
template <class Offset>
struct MaxPosition {
  PoolSizes sizes;
  const Offset* offsets;
  __device__ int64_t position(int64_t i, const PoolPlace& place) const {
    int64_t tap = static_cast<int64_t>(offsets[i]), at[3];
    for (int a = 2; a >= 0; --a) {
      const PoolAxis& axis = sizes.axes[a];
      const PoolWindow window = axis.window(place.at[a]);
      at[a] = window.begin + (tap % axis.kernel - window.first_tap) * window.step;
      tap /= axis.kernel;
    }
    return (at[0] * sizes.axes[1].input + at[1]) * sizes.axes[2].input + at[2];
  }
  __device__ int64_t operator()(int64_t i) const { return position(i, PoolPlace(sizes.output, i)); }
};

template <class T, class Offset>
struct MaxGather {
  MaxPosition<Offset> maximum;
  const T* x;
  __device__ T operator()(int64_t i) const {
    const PoolPlace place(maximum.sizes.output, i);
    return x[place.plane * maximum.sizes.input_positions() + maximum.position(i, place)];
  }
};

/// Launches `f` over the outputs of `problem`; false, and nothing done, where tiles do not serve.
template <class T, class F>
bool by_tiles(const char* name, const PoolProblem& problem, const Tensor& x, const F& f) {
  const auto planes = PoolPlanes::of(problem);
  if (!planes) return false;
  const auto are = [&](int taps, int stride) {
    return planes->height.kernel == taps && planes->width.kernel == taps && planes->height.stride == stride;
  };
  const ForwardTiling tiling(*planes, sizeof(T), are(2, 2) || are(3, 2) || are(3, 1) || are(5, 1));
  if (!tiling.serves(sizeof(T))) return false;
  const DeviceScope scope(x.device());
  const auto run = [&]<int kTaps, int kStride>(std::integer_sequence<int, kTaps, kStride>) {
    launch(name, tile_kernel<kTaps, kStride, T, F>, static_cast<unsigned>(tiling.blocks), tiling.threads,
           device::copied_bytes<T>(tiling.staged) + F::image_bytes(tiling.outputs), scope.stream(), *planes, tiling,
           x.data<T>(), f);
  };
  if (are(2, 2)) {
    run(std::integer_sequence<int, 2, 2>{});
  } else if (are(3, 2)) {
    run(std::integer_sequence<int, 3, 2>{});
  } else if (are(3, 1)) {
    run(std::integer_sequence<int, 3, 1>{});
  } else if (are(5, 1)) {
    run(std::integer_sequence<int, 5, 1>{});
  } else {
    run(std::integer_sequence<int, 0, 0>{});
  }
  return true;
}

}  // namespace

void max_pool_forward(const PoolProblem& problem, const Tensor& x, const Tensor& y, const Tensor& offsets) {
  constexpr const char* kName = "max_pool";
  if (y.numel() == 0) return;
  dispatch_pool(kName, x.dtype(), problem.offset_dtype(),
                [&]<class T, class Offset>(std::type_identity<T>, std::type_identity<Offset>) {
                  Offset* const out = data_or_null<Offset>(offsets);
                  if constexpr (sizeof(Offset) == 1) {
                    const bool done = out == nullptr
                                          ? by_tiles<T>(kName, problem, x, PlaneMax<T, false>{y.data<T>(), nullptr})
                                          : by_tiles<T>(kName, problem, x, PlaneMax<T, true>{y.data<T>(), out});
                    if (done) return;
                  }
                  generate<1>(kName, MaxForward<T, Offset>{PoolSizes(problem), x.data<T>(), out}, Elements<T>{y});
                });
}

void avg_pool_forward(const PoolProblem& problem, const Tensor& x, const Tensor& y) {
  constexpr const char* kName = "avg_pool";
  if (y.numel() == 0) return;
  dispatch_floating(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    if (by_tiles<T>(kName, problem, x, PlaneAverage<T>(y.data<T>(), problem))) return;
    generate<1>(kName, AverageForward<T>{PoolSizes(problem), x.data<T>()}, Elements<T>{y});
  });
}

void max_pool_gather(const PoolProblem& problem, const Tensor& offsets, const Tensor& x, const Tensor& y) {
  dispatch_pool("max_pool_gather", x.dtype(), problem.offset_dtype(),
                [&]<class T, class Offset>(std::type_identity<T>, std::type_identity<Offset>) {
                  const MaxPosition<Offset> maximum{PoolSizes(problem), offsets.data<Offset>()};
                  generate<1>("max_pool_gather", MaxGather<T, Offset>{maximum, x.data<T>()}, Elements<T>{y});
                });
}

void max_pool_indices(const PoolProblem& problem, const Tensor& offsets, const Tensor& indices) {
  dispatch_offsets(problem.offset_dtype(), [&]<class Offset>(std::type_identity<Offset>) {
    generate<1>("max_pool_indices", MaxPosition<Offset>{PoolSizes(problem), offsets.data<Offset>()},
                Elements<int64_t>{indices});
  });
}

}  // namespace halo::cuda
