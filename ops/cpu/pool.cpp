// Pooling on the CPU. The windows of each axis are worked out once; forward passes share rows of windows among threads,
// backward passes whole planes, since windows overlap.
#include <halo/core/error.h>
#include <halo/core/parallel.h>
#include <halo/ops/pool_backend.h>

#include <algorithm>
#include <array>
#include <vector>

namespace halo::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // inputs a piece of work should touch

struct Windows {
  explicit Windows(const PoolProblem& p) : height(p.axes[1].input), width(p.axes[2].input) {
    for (std::size_t i = 0; i < 3; ++i) {
      for (int64_t o = 0; o < p.axes[i].output; ++o) axis[i].push_back(p.axes[i].window(o));
    }
  }
  const PoolWindow& at(std::size_t i, int64_t o) const { return axis[i][static_cast<std::size_t>(o)]; }

  /// Calls f(position in the plane) for the inputs of a window, in row-major order.
  template <class F>
  void for_each_input(int64_t od, int64_t oh, int64_t ow, F&& f) const {
    const PoolWindow &d = at(0, od), &h = at(1, oh), &w = at(2, ow);
    for (int64_t td = 0; td < d.count; ++td) {
      for (int64_t th = 0; th < h.count; ++th) {
        const int64_t row = ((d.begin + td * d.step) * height + h.begin + th * h.step) * width + w.begin;
        for (int64_t tw = 0; tw < w.count; ++tw) f(row + tw * w.step);
      }
    }
  }

  std::array<std::vector<PoolWindow>, 3> axis;
  int64_t height, width;
};

/// Calls f(plane, od, oh, first output of the row) for every row of windows, on several threads.
template <class F>
void for_each_row(const PoolProblem& p, F&& f) {
  const int64_t depth = p.axes[0].output, height = p.axes[1].output, width = p.axes[2].output;
  const int64_t grain = kGrain / std::clamp<int64_t>(width * p.taps(), 1, kGrain);
  parallel_for(p.planes() * depth * height, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i / (depth * height), i / height % depth, i % height, i * width);
  });
}

/// Calls f(plane) for every plane, on several threads.
template <class F>
void for_each_plane(const PoolProblem& p, F&& f) {
  const int64_t grain = kGrain / std::clamp<int64_t>(p.input_positions(), 1, kGrain);
  parallel_for(p.planes(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) f(plane);
  });
}

/// Calls f(od, oh, ow, output index in the plane) for the windows of one plane in order.
template <class F>
void for_each_window(const PoolProblem& p, F&& f) {
  int64_t o = 0;
  for (int64_t od = 0; od < p.axes[0].output; ++od) {
    for (int64_t oh = 0; oh < p.axes[1].output; ++oh) {
      for (int64_t ow = 0; ow < p.axes[2].output; ++ow) f(od, oh, ow, o++);
    }
  }
}

template <class F>
void dispatch_offsets(const PoolProblem& p, F&& f) {
  if (p.offset_dtype() == DType::UInt8) {
    f(std::type_identity<uint8_t>{});
  } else {
    f(std::type_identity<int64_t>{});
  }
}

template <class T>
int64_t first_nan(const Windows& windows, const T* in, int64_t od, int64_t oh, int64_t ow) {
  int64_t found = -1;
  windows.for_each_input(od, oh, ow, [&](int64_t at) {
    if (found < 0 && in[at] != in[at]) found = at;
  });
  return found;
}

template <class T, class Offset>
void max_forward(const PoolProblem& p, const T* x, T* y, Offset* offsets) {
  const Windows windows(p);
  const int64_t kh = p.axes[1].kernel, kw = p.axes[2].kernel;
  const int64_t height = p.axes[1].input, width = p.axes[2].input;
  for_each_row(p, [&](int64_t plane, int64_t od, int64_t oh, int64_t first) {
    const T* const in = x + plane * p.input_positions();
    const PoolWindow &d = windows.at(0, od), &h = windows.at(1, oh);
    for (int64_t ow = 0; ow < p.axes[2].output; ++ow) {
      const PoolWindow& w = windows.at(2, ow);
      int64_t where = (d.begin * height + h.begin) * width + w.begin;
      T best = in[where];
      bool nan = best != best;
      windows.for_each_input(od, oh, ow, [&](int64_t at) {
        // Selections the processor has instructions for: which input is largest cannot be predicted.
        const T value = in[at];
        nan |= value != value;
        where = value > best ? at : where;
        best = std::max(best, value);
      });
      if (nan) where = first_nan(windows, in, od, oh, ow);
      y[first + ow] = in[where];
      if (offsets == nullptr) continue;
      const int64_t td = d.first_tap + (where / (height * width) - d.begin) / d.step;
      const int64_t th = h.first_tap + (where / width % height - h.begin) / h.step;
      const int64_t tw = w.first_tap + (where % width - w.begin) / w.step;
      offsets[first + ow] = static_cast<Offset>((td * kh + th) * kw + tw);
    }
  });
}

/// Calls f(plane, output index, input position) for every maximum; those of a plane in order and on one thread.
template <class F>
void for_each_maximum(const PoolProblem& p, const Tensor& offsets, F&& f) {
  const int64_t kh = p.axes[1].kernel, kw = p.axes[2].kernel;
  dispatch_offsets(p, [&](auto type) {
    const auto* const offset = offsets.data<typename decltype(type)::type>();
    for_each_plane(p, [&](int64_t plane) {
      for_each_window(p, [&](int64_t od, int64_t oh, int64_t ow, int64_t o) {
        const int64_t at = static_cast<int64_t>(offset[plane * p.output_positions() + o]);
        const int64_t d = p.axes[0].input_at(od, at / (kh * kw)), h = p.axes[1].input_at(oh, at / kw % kh);
        const int64_t w = p.axes[2].input_at(ow, at % kw);
        f(plane, plane * p.output_positions() + o, (d * p.axes[1].input + h) * p.axes[2].input + w);
      });
    });
  });
}

double divisor(const PoolProblem& p, const PoolWindow& d, const PoolWindow& h, const PoolWindow& w) {
  if (p.divisor_override != 0) return static_cast<double>(p.divisor_override);
  if (p.count_include_pad) return static_cast<double>(d.padded) * static_cast<double>(h.padded * w.padded);
  return static_cast<double>(d.count * h.count * w.count);
}

template <class T>
void avg_forward(const PoolProblem& p, const T* x, T* y) {
  const Windows windows(p);
  for_each_row(p, [&](int64_t plane, int64_t od, int64_t oh, int64_t first) {
    const T* const in = x + plane * p.input_positions();
    for (int64_t ow = 0; ow < p.axes[2].output; ++ow) {
      double sum = 0;
      windows.for_each_input(od, oh, ow, [&](int64_t at) { sum += static_cast<double>(in[at]); });
      y[first + ow] = static_cast<T>(sum / divisor(p, windows.at(0, od), windows.at(1, oh), windows.at(2, ow)));
    }
  });
}

template <class T>
void avg_backward(const PoolProblem& p, const T* g, T* x) {
  const Windows windows(p);
  for_each_plane(p, [&](int64_t plane) {
    T* const out = x + plane * p.input_positions();
    std::fill_n(out, p.input_positions(), T(0));
    for_each_window(p, [&](int64_t od, int64_t oh, int64_t ow, int64_t o) {
      const double count = divisor(p, windows.at(0, od), windows.at(1, oh), windows.at(2, ow));
      const T share = static_cast<T>(static_cast<double>(g[plane * p.output_positions() + o]) / count);
      windows.for_each_input(od, oh, ow, [&](int64_t at) { out[at] += share; });
    });
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
