// Pooling on the CPU. Forward passes share rows of windows among threads, backward passes whole planes, since windows
// overlap.
#include <halo/core/error.h>
#include <halo/core/parallel.h>
#include <halo/ops/pool_backend.h>

#include <algorithm>

namespace halo::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // inputs a piece of work should touch

/// One window, an axis each.
struct Window {
  PoolWindow d, h, w;
};

/// Calls f(position in the plane) for the inputs of a window, in row-major order.
template <class F>
void for_each_input(const PoolProblem& p, const Window& window, F&& f) {
  const auto& [d, h, w] = window;
  for (int64_t td = 0; td < d.count; ++td) {
    for (int64_t th = 0; th < h.count; ++th) {
      const int64_t row = (d.begin + td * d.step) * p.axes[1].input + h.begin + th * h.step;
      const int64_t first = row * p.axes[2].input + w.begin;
      for (int64_t tw = 0; tw < w.count; ++tw) f(first + tw * w.step);
    }
  }
}

/// Calls f(plane, output index, window) for the windows of rows begin ... end - 1, counted over all planes.
template <class F>
void for_each_window(const PoolProblem& p, int64_t begin, int64_t end, F&& f) {
  const auto& [depth, height, width] = p.axes;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t plane = row / (depth.output * height.output);
    const PoolWindow d = depth.window(row / height.output % depth.output), h = height.window(row % height.output);
    for (int64_t ow = 0; ow < width.output; ++ow) f(plane, row * width.output + ow, Window{d, h, width.window(ow)});
  }
}

int64_t rows_of_plane(const PoolProblem& p) { return p.axes[0].output * p.axes[1].output; }

/// The same for all windows, rows on several threads.
template <class F>
void for_each_window(const PoolProblem& p, F&& f) {
  const int64_t grain = kGrain / std::clamp<int64_t>(p.axes[2].output * p.taps(), 1, kGrain);
  parallel_for(p.planes() * rows_of_plane(p), grain,
               [&](int64_t begin, int64_t end) { for_each_window(p, begin, end, f); });
}

/// The same with the windows of a plane in order and on one thread, for sums into the plane.
template <class F>
void for_each_window_of_planes(const PoolProblem& p, F&& f) {
  const int64_t grain = kGrain / std::clamp<int64_t>(p.input_positions(), 1, kGrain), rows = rows_of_plane(p);
  parallel_for(p.planes(), grain, [&](int64_t begin, int64_t end) { for_each_window(p, begin * rows, end * rows, f); });
}

template <class F>
void dispatch_offsets(const PoolProblem& p, F&& f) {
  if (p.offset_dtype() == DType::UInt8) {
    f(std::type_identity<uint8_t>{});
  } else {
    f(std::type_identity<int64_t>{});
  }
}

/// Position in the plane to offset in the window (PoolProblem::offset_dtype), and back.
int64_t offset_of(const PoolProblem& p, const Window& window, int64_t position) {
  const int64_t height = p.axes[1].input, width = p.axes[2].input;
  const int64_t td = window.d.tap_at(position / (height * width)), th = window.h.tap_at(position / width % height);
  return (td * p.axes[1].kernel + th) * p.axes[2].kernel + window.w.tap_at(position % width);
}
int64_t position_of(const PoolProblem& p, const Window& window, int64_t offset) {
  const int64_t kh = p.axes[1].kernel, kw = p.axes[2].kernel;
  const int64_t d = window.d.input_at(offset / (kh * kw)), h = window.h.input_at(offset / kw % kh);
  return (d * p.axes[1].input + h) * p.axes[2].input + window.w.input_at(offset % kw);
}

template <class T>
int64_t first_nan(const PoolProblem& p, const Window& window, const T* in) {
  int64_t found = -1;
  for_each_input(p, window, [&](int64_t at) {
    if (found < 0 && in[at] != in[at]) found = at;
  });
  return found;
}

template <class T, class Offset>
void max_forward(const PoolProblem& p, const T* x, T* y, Offset* offsets) {
  for_each_window(p, [&](int64_t plane, int64_t o, const Window& window) {
    const T* const in = x + plane * p.input_positions();
    int64_t where = (window.d.begin * p.axes[1].input + window.h.begin) * p.axes[2].input + window.w.begin;
    T best = in[where];
    bool nan = false;
    for_each_input(p, window, [&](int64_t at) {
      // Selections the processor has instructions for: which input is largest cannot be predicted.
      const T value = in[at];
      nan |= value != value;
      where = value > best ? at : where;
      best = std::max(best, value);
    });
    if (nan) where = first_nan(p, window, in);
    y[o] = in[where];
    if (offsets != nullptr) offsets[o] = static_cast<Offset>(offset_of(p, window, where));
  });
}

/// Calls f(plane, output index, position in the plane) for every maximum; those of a plane in order and on one thread.
template <class F>
void for_each_maximum(const PoolProblem& p, const Tensor& offsets, F&& f) {
  dispatch_offsets(p, [&](auto type) {
    const auto* const offset = offsets.data<typename decltype(type)::type>();
    for_each_window_of_planes(p, [&](int64_t plane, int64_t o, const Window& window) {
      f(plane, o, position_of(p, window, static_cast<int64_t>(offset[o])));
    });
  });
}

double divisor(const PoolProblem& p, const Window& window) {
  const auto& [d, h, w] = window;
  if (p.divisor_override != 0) return static_cast<double>(p.divisor_override);
  if (p.count_include_pad) return static_cast<double>(d.padded) * static_cast<double>(h.padded * w.padded);
  return static_cast<double>(d.count * h.count * w.count);
}

template <class T>
void avg_forward(const PoolProblem& p, const T* x, T* y) {
  for_each_window(p, [&](int64_t plane, int64_t o, const Window& window) {
    const T* const in = x + plane * p.input_positions();
    double sum = 0;
    for_each_input(p, window, [&](int64_t at) { sum += static_cast<double>(in[at]); });
    y[o] = static_cast<T>(sum / divisor(p, window));
  });
}

template <class T>
void avg_backward(const PoolProblem& p, const T* g, T* x) {
  std::fill_n(x, p.planes() * p.input_positions(), T(0));
  for_each_window_of_planes(p, [&](int64_t plane, int64_t o, const Window& window) {
    T* const out = x + plane * p.input_positions();
    const T share = static_cast<T>(static_cast<double>(g[o]) / divisor(p, window));
    for_each_input(p, window, [&](int64_t at) { out[at] += share; });
  });
}

}  // namespace

void max_pool_forward(const PoolProblem& problem, const Tensor& x, const Tensor& y, const Tensor& offsets) {
  dispatch_float("max_pool", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    dispatch_offsets(problem, [&](auto offset_type) {
      using Offset = typename decltype(offset_type)::type;
      max_forward<T, Offset>(problem, x.data<T>(), y.data<T>(), offsets.defined() ? offsets.data<Offset>() : nullptr);
    });
  });
}

void max_pool_scatter(const PoolProblem& problem, const Tensor& offsets, const Tensor& g, const Tensor& x) {
  dispatch_float("max_pool", g.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* const from = g.data<T>();
    T* const to = x.data<T>();
    std::fill_n(to, x.numel(), T(0));
    for_each_maximum(problem, offsets, [&](int64_t plane, int64_t o, int64_t position) {
      to[plane * problem.input_positions() + position] += from[o];
    });
  });
}

void max_pool_gather(const PoolProblem& problem, const Tensor& offsets, const Tensor& x, const Tensor& y) {
  dispatch_float("max_pool", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T* const from = x.data<T>();
    T* const to = y.data<T>();
    for_each_maximum(problem, offsets, [&](int64_t plane, int64_t o, int64_t position) {
      to[o] = from[plane * problem.input_positions() + position];
    });
  });
}

void max_pool_indices(const PoolProblem& problem, const Tensor& offsets, const Tensor& indices) {
  int64_t* const to = indices.data<int64_t>();
  for_each_maximum(problem, offsets, [&](int64_t, int64_t o, int64_t position) { to[o] = position; });
}

void avg_pool_forward(const PoolProblem& problem, const Tensor& x, const Tensor& y) {
  dispatch_float("avg_pool", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    avg_forward<T>(problem, x.data<T>(), y.data<T>());
  });
}

void avg_pool_backward(const PoolProblem& problem, const Tensor& g, const Tensor& x) {
  dispatch_float("avg_pool", g.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    avg_backward<T>(problem, g.data<T>(), x.data<T>());
  });
}

}  // namespace halo::cpu
