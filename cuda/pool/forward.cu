// Pooling forward, and gathering by where the maxima were: a thread an output.
#include <halo/ops/pool_backend.h>

#include "../device/map.cuh"
#include "../device/number.cuh"
#include "../runtime/data.h"
#include "dispatch.h"
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

/// Outputs of a thread, one below the other: finding a place costs divisions.
constexpr int kMarch = 4;

/// The window at (top, left) of a plane. kTaps by kTaps taps are unrolled, so that their loads are in flight together;
/// 0: any.
template <int kTaps>
struct PlaneWindow {
  int top, left;

  /// visit(value, flat tap) for the inputs in row-major order; where kTaps is not 0 also `outside` for the padding.
  template <class T, class Visit>
  __device__ __forceinline__ void each(const PoolPlanes& p, const T* plane, Accumulator<T> outside, Visit visit) const {
    if constexpr (kTaps > 0) {
      const T* const corner = plane + top * p.width.input + left;
      const bool whole = top >= 0 && left >= 0 && top + kTaps <= p.height.input && left + kTaps <= p.width.input;
      Accumulator<T> value[kTaps * kTaps];
#pragma unroll
      for (int r = 0; r < kTaps; ++r) {
#pragma unroll
        for (int c = 0; c < kTaps; ++c) {
          const bool inside = whole || (static_cast<unsigned>(top + r) < static_cast<unsigned>(p.height.input) &&
                                        static_cast<unsigned>(left + c) < static_cast<unsigned>(p.width.input));
          value[r * kTaps + c] = inside ? to_accumulator(corner[r * p.width.input + c]) : outside;
        }
      }
#pragma unroll
      for (int tap = 0; tap < kTaps * kTaps; ++tap) visit(value[tap], tap);
    } else {
      const int bottom = min(top + p.height.kernel, p.height.input), right = min(left + p.width.kernel, p.width.input);
      for (int row = max(top, 0); row < bottom; ++row) {
#pragma unroll 4
        for (int column = max(left, 0); column < right; ++column) {
          visit(to_accumulator(plane[row * p.width.input + column]), (row - top) * p.width.kernel + column - left);
        }
      }
    }
  }
};

/// f(window, first element of its plane, output) for kMarch outputs a thread.
template <int kTaps, class T, class F>
__global__ void __launch_bounds__(kMapThreads)
    march_kernel(const __grid_constant__ PoolPlanes p, const __grid_constant__ Divide groups, int64_t threads,
                 const T* x, const __grid_constant__ F f) {
  int64_t plane = int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (plane >= threads) return;
  const int column = static_cast<int>(p.by_width.split(plane));
  const int first = static_cast<int>(groups.split(plane)) * kMarch;
  const T* const in = x + plane * p.inputs();
  const int64_t out = plane * p.outputs() + column;
  const int left = p.width.start(column);
#pragma unroll 2
  for (int row = first; row < min(first + kMarch, p.height.output); ++row) {
    f(p, PlaneWindow<kTaps>{p.height.start(row), left}, in, out + row * p.width.output);
  }
}

template <class T, class Offset>
struct PlaneMax {
  T* y;
  Offset* offsets;  ///< null: not wanted
  template <int kTaps>
  __device__ __forceinline__ void operator()(const PoolPlanes& p, const PlaneWindow<kTaps>& window, const T* plane,
                                             int64_t i) const {
    using Value = Accumulator<T>;
    const int first = max(-window.top, 0) * p.width.kernel + max(-window.left, 0);
    Best<Value, int> best{-static_cast<Value>(INFINITY), first};
    window.each(p, plane, best.value, [&](Value value, int tap) { best.take(value, tap); });
    if (offsets != nullptr) offsets[i] = static_cast<Offset>(best.tap);
    y[i] = from_accumulator<T>(best.value);
  }
};

template <class T>
struct PlaneAverage {
  T* y;
  template <int kTaps>
  __device__ __forceinline__ void operator()(const PoolPlanes& p, const PlaneWindow<kTaps>& window, const T* plane,
                                             int64_t i) const {
    using Value = Accumulator<T>;
    std::conditional_t<kTaps == 0, double, Value> sum = 0;  // few values are as good in their own type
    window.each(p, plane, Value(0), [&](Value value, int) { sum += value; });
    y[i] = from_accumulator<T>(static_cast<Value>(sum / p.divisor(window.top, window.left)));
  }
};

template <class T, class Offset>
struct MaxForward {
  PoolSizes sizes;
  const T* x;
  Offset* offsets;  ///< null: not wanted
  __device__ T operator()(int64_t i) const {
    using Value = Accumulator<T>;
    const PoolPlace place(sizes.output, i);
    const T* const plane = x + place.plane * sizes.input_positions();
    Best<Value, int64_t> best{0, -1};
    OutputWindows(sizes, place).each(sizes, [&](int64_t at, int64_t tap) {
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
    windows.each(sizes, [&](int64_t at, int64_t) { sum += static_cast<double>(to_accumulator(plane[at])); });
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

/// Launches `f` over the outputs of `p`.
template <class T, class F>
void march(const char* name, const PoolPlanes& p, const Tensor& x, const F& f) {
  const int64_t groups = (p.height.output + kMarch - 1) / kMarch, threads = p.planes * groups * p.width.output;
  if (threads == 0) return;
  const DeviceScope scope(x.device());
  const auto run = [&]<int kTaps>(std::integral_constant<int, kTaps>) {
    launch(name, march_kernel<kTaps, T, F>, map_blocks(threads), kMapThreads, 0, scope.stream(), p,
           Divide(groups, threads), threads, x.data<T>(), f);
  };
  const bool square = p.height.kernel == p.width.kernel;
  if (square && p.width.kernel == 2) return run(std::integral_constant<int, 2>{});
  if (square && p.width.kernel == 3) return run(std::integral_constant<int, 3>{});
  run(std::integral_constant<int, 0>{});
}

}  // namespace

void max_pool_forward(const PoolProblem& problem, const Tensor& x, const Tensor& y, const Tensor& offsets) {
  constexpr const char* kName = "max_pool";
  const auto planes = PoolPlanes::of(problem);
  dispatch_pool(kName, x.dtype(), problem.offset_dtype(),
                [&]<class T, class Offset>(std::type_identity<T>, std::type_identity<Offset>) {
                  Offset* const out = data_or_null<Offset>(offsets);
                  if constexpr (sizeof(Offset) == 1) {
                    if (planes) return march<T>(kName, *planes, x, PlaneMax<T, Offset>{y.data<T>(), out});
                  }
                  generate<1>(kName, MaxForward<T, Offset>{PoolSizes(problem), x.data<T>(), out}, Elements<T>{y});
                });
}

void avg_pool_forward(const PoolProblem& problem, const Tensor& x, const Tensor& y) {
  constexpr const char* kName = "avg_pool";
  dispatch_floating(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto planes = PoolPlanes::of(problem);
    if (planes) return march<T>(kName, *planes, x, PlaneAverage<T>{y.data<T>()});
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
