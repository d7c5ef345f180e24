// Pooling: a thread an output; the adjoints a thread an input, which visits the windows over it in order. The sizes and
// windows are ops/pool_axis.h's.
#include <halo/ops/pool_backend.h>

#include "../device/map.cuh"

namespace halo::cuda {
namespace {

/// PoolProblem as a kernel sees it.
struct Sizes {
  PoolAxis axes[3];
  Divide output[3], input[3];
  bool count_include_pad;
  int64_t divisor_override;

  explicit Sizes(const PoolProblem& p) : count_include_pad(p.count_include_pad), divisor_override(p.divisor_override) {
    const int64_t inputs = p.planes() * p.input_positions(), outputs = p.planes() * p.output_positions();
    for (std::size_t axis = 0; axis < 3; ++axis) {
      axes[axis] = p.axes[axis];
      output[axis] = Divide(p.axes[axis].output, outputs);
      input[axis] = Divide(p.axes[axis].input, inputs);
    }
  }
  __device__ int64_t input_positions() const { return axes[0].input * axes[1].input * axes[2].input; }
  __device__ int64_t output_positions() const { return axes[0].output * axes[1].output * axes[2].output; }
};

struct Place {
  int64_t plane, at[3];
  __device__ Place(const Divide (&extents)[3], int64_t i) : plane(i) {
    for (int axis = 2; axis >= 0; --axis) at[axis] = extents[axis].split(plane);
  }
};

/// The windows over one output, and a loop over their inputs: visit(flat position in the plane, flat tap).
struct OutputWindows {
  PoolWindow axis[3];
  __device__ OutputWindows(const Sizes& sizes, const Place& place) {
    for (int a = 0; a < 3; ++a) axis[a] = sizes.axes[a].window(place.at[a]);
  }
  template <class Visit>
  __device__ void each(const Sizes& sizes, Visit visit) const {
    for (int64_t d = 0; d < axis[0].count; ++d) {
      const int64_t depth = axis[0].begin + d * axis[0].step, depth_tap = axis[0].first_tap + d;
      for (int64_t h = 0; h < axis[1].count; ++h) {
        const int64_t row = depth * sizes.axes[1].input + axis[1].begin + h * axis[1].step;
        const int64_t row_tap = depth_tap * sizes.axes[1].kernel + axis[1].first_tap + h;
        for (int64_t w = 0; w < axis[2].count; ++w) {
          visit(row * sizes.axes[2].input + axis[2].begin + w * axis[2].step,
                row_tap * sizes.axes[2].kernel + axis[2].first_tap + w);
        }
      }
    }
  }
  __device__ int64_t divisor(const Sizes& sizes) const {
    if (sizes.divisor_override != 0) return sizes.divisor_override;
    int64_t product = 1;
    for (int a = 0; a < 3; ++a) product *= sizes.count_include_pad ? axis[a].padded : axis[a].count;
    return product;
  }
};

/// Loops over the windows that hold an input: visit(flat output position in the plane, flat tap, window places).
template <class Visit>
__device__ void each_window_over(const Sizes& sizes, const Place& input, Visit visit) {
  PoolRange range[3];
  for (int a = 0; a < 3; ++a) range[a] = sizes.axes[a].windows_over(input.at[a]);
  Place window = input;
  for (window.at[0] = range[0].first; window.at[0] <= range[0].last; ++window.at[0]) {
    const int64_t depth_tap = sizes.axes[0].tap_of(window.at[0], input.at[0]);
    if (depth_tap < 0) continue;
    for (window.at[1] = range[1].first; window.at[1] <= range[1].last; ++window.at[1]) {
      const int64_t row_tap = sizes.axes[1].tap_of(window.at[1], input.at[1]);
      if (row_tap < 0) continue;
      const int64_t row = window.at[0] * sizes.axes[1].output + window.at[1];
      for (window.at[2] = range[2].first; window.at[2] <= range[2].last; ++window.at[2]) {
        const int64_t tap = sizes.axes[2].tap_of(window.at[2], input.at[2]);
        if (tap < 0) continue;
        visit(row * sizes.axes[2].output + window.at[2],
              (depth_tap * sizes.axes[1].kernel + row_tap) * sizes.axes[2].kernel + tap, window);
      }
    }
  }
}

template <class T, class Offset>
struct MaxForward {
  Sizes sizes;
  const T* x;
  Offset* offsets;  ///< null: not wanted
  __device__ T operator()(int64_t i) const {
    const Place place(sizes.output, i);
    const T* const plane = x + place.plane * sizes.input_positions();
    T best = 0;
    int64_t best_tap = -1;
    OutputWindows(sizes, place).each(sizes, [&](int64_t at, int64_t tap) {
      const T value = plane[at];
      if (best_tap < 0 || value > best || (value != value && best == best)) {
        best = value;
        best_tap = tap;
      }
    });
    if (offsets != nullptr) offsets[i] = static_cast<Offset>(best_tap);
    return best;
  }
};

template <class T, class Offset>
struct MaxScatter {
  Sizes sizes;
  const Offset* offsets;
  const T* g;
  __device__ T operator()(int64_t i) const {
    const Place place(sizes.input, i);
    const int64_t first = place.plane * sizes.output_positions();
    T sum = 0;
    each_window_over(sizes, place, [&](int64_t at, int64_t tap, const Place&) {
      if (static_cast<int64_t>(offsets[first + at]) == tap) sum += g[first + at];
    });
    return sum;
  }
};

/// The flat position in the input plane of output i's maximum.
template <class Offset>
struct MaxPosition {
  Sizes sizes;
  const Offset* offsets;
  __device__ int64_t position(int64_t i, const Place& place) const {
    int64_t tap = static_cast<int64_t>(offsets[i]), at[3];
    for (int a = 2; a >= 0; --a) {
      const PoolAxis& axis = sizes.axes[a];
      const PoolWindow window = axis.window(place.at[a]);
      at[a] = window.begin + (tap % axis.kernel - window.first_tap) * window.step;
      tap /= axis.kernel;
    }
    return (at[0] * sizes.axes[1].input + at[1]) * sizes.axes[2].input + at[2];
  }
  __device__ int64_t operator()(int64_t i) const { return position(i, Place(sizes.output, i)); }
};

template <class T, class Offset>
struct MaxGather {
  MaxPosition<Offset> maximum;
  const T* x;
  __device__ T operator()(int64_t i) const {
    const Place place(maximum.sizes.output, i);
    return x[place.plane * maximum.sizes.input_positions() + maximum.position(i, place)];
  }
};

template <class T>
struct AverageForward {
  Sizes sizes;
  const T* x;
  __device__ T operator()(int64_t i) const {
    const Place place(sizes.output, i);
    const T* const plane = x + place.plane * sizes.input_positions();
    const OutputWindows windows(sizes, place);
    double sum = 0;
    windows.each(sizes, [&](int64_t at, int64_t) { sum += static_cast<double>(plane[at]); });
    return static_cast<T>(sum / static_cast<double>(windows.divisor(sizes)));
  }
};

template <class T>
struct AverageBackward {
  Sizes sizes;
  const T* g;
  __device__ T operator()(int64_t i) const {
    const Place place(sizes.input, i);
    const int64_t first = place.plane * sizes.output_positions();
    double sum = 0;
    each_window_over(sizes, place, [&](int64_t at, int64_t, const Place& window) {
      const int64_t divisor = OutputWindows(sizes, window).divisor(sizes);
      sum += static_cast<double>(g[first + at]) / static_cast<double>(divisor);
    });
    return static_cast<T>(sum);
  }
};

/// Calls f with the element type and that of the offsets.
template <class F>
void dispatch_pool(const char* op, DType dtype, DType offsets, F&& f) {
  dispatch_float(op, dtype, [&]<class T>(std::type_identity<T> type) {
    if (offsets == DType::UInt8) {
      f(type, std::type_identity<uint8_t>{});
    } else {
      f(type, std::type_identity<int64_t>{});
    }
  });
}

}  // namespace

void max_pool_forward(const PoolProblem& problem, const Tensor& x, const Tensor& y, const Tensor& offsets) {
  dispatch_pool("max_pool", x.dtype(), problem.offset_dtype(),
                [&]<class T, class Offset>(std::type_identity<T>, std::type_identity<Offset>) {
                  Offset* const out = offsets.defined() ? offsets.data<Offset>() : nullptr;
                  generate<true>("max_pool", MaxForward<T, Offset>{Sizes(problem), x.data<T>(), out}, Elements<T>{y});
                });
}

void max_pool_scatter(const PoolProblem& problem, const Tensor& offsets, const Tensor& g, const Tensor& x) {
  dispatch_pool("max_pool_scatter", g.dtype(), problem.offset_dtype(),
                [&]<class T, class Offset>(std::type_identity<T>, std::type_identity<Offset>) {
                  generate<true>("max_pool_scatter",
                                 MaxScatter<T, Offset>{Sizes(problem), offsets.data<Offset>(), g.data<T>()},
                                 Elements<T>{x});
                });
}

void max_pool_gather(const PoolProblem& problem, const Tensor& offsets, const Tensor& x, const Tensor& y) {
  dispatch_pool("max_pool_gather", x.dtype(), problem.offset_dtype(),
                [&]<class T, class Offset>(std::type_identity<T>, std::type_identity<Offset>) {
                  const MaxPosition<Offset> maximum{Sizes(problem), offsets.data<Offset>()};
                  generate<true>("max_pool_gather", MaxGather<T, Offset>{maximum, x.data<T>()}, Elements<T>{y});
                });
}

void max_pool_indices(const PoolProblem& problem, const Tensor& offsets, const Tensor& indices) {
  dispatch_pool("max_pool_indices", DType::Float32, problem.offset_dtype(),
                [&]<class T, class Offset>(std::type_identity<T>, std::type_identity<Offset>) {
                  generate<true>("max_pool_indices", MaxPosition<Offset>{Sizes(problem), offsets.data<Offset>()},
                                 Elements<int64_t>{indices});
                });
}

void avg_pool_forward(const PoolProblem& problem, const Tensor& x, const Tensor& y) {
  dispatch_float("avg_pool", x.dtype(), [&]<class T>(std::type_identity<T>) {
    generate<true>("avg_pool", AverageForward<T>{Sizes(problem), x.data<T>()}, Elements<T>{y});
  });
}

void avg_pool_backward(const PoolProblem& problem, const Tensor& g, const Tensor& x) {
  dispatch_float("avg_pool_backward", g.dtype(), [&]<class T>(std::type_identity<T>) {
    generate<true>("avg_pool_backward", AverageBackward<T>{Sizes(problem), g.data<T>()}, Elements<T>{x});
  });
}

}  // namespace halo::cuda
