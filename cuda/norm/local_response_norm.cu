// Local response normalisation. Windows of up to five channels, which is what networks use, are marched over: a thread
// goes down the channels at one position and keeps in registers what windows reach. Larger ones: a thread an element,
// and backward keeps what windows add up in a tensor.
#include <halo/core/copy.h>
#include <halo/ops/local_response_norm_backend.h>

#include <algorithm>

#include "../device/map.cuh"
#include "../device/number.cuh"
#include "channel_march.cuh"

namespace halo::cuda {
namespace {

using device::Accumulator;
using device::from_accumulator;
using device::to_accumulator;

template <class Value>
struct Window {
  int64_t before, after, channels;
  Value alpha, beta, k;

  /// k + alpha * sum of squares around channel c, whose element is x[c * step].
  template <class T>
  __device__ Value sum(const T* x, int64_t c, int64_t step) const {
    const int64_t first = max(int64_t{0}, c - before), last = min(channels - 1, c + after);
    double squares = 0;
    for (int64_t j = first; j <= last; ++j) {
      const double value = static_cast<double>(to_accumulator(x[j * step]));
      squares += value * value;
    }
    return static_cast<Value>(static_cast<double>(k) + static_cast<double>(alpha) * squares);
  }

  struct Powers {
    Value scale, inverse;  ///< s^-beta and 1 / s
  };
  template <bool kThreeQuarters = false>
  __device__ __forceinline__ Powers powers(Value s) const {
    if constexpr (sizeof(Value) == 8) {
      return {pow(s, -beta), 1 / s};
    } else if constexpr (kThreeQuarters) {
      float root, fourth;  // neither s nor the root is subnormal
      asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(s));
      asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(fourth) : "f"(root));
      return {root * fourth, root * root};
    } else {
      return {exp2f(-beta * log2f(s)), 1 / s};
    }
  }
};

template <class T>
Window<Accumulator<T>> window(const LocalResponseNorm& norm, int64_t channels) {
  using Value = Accumulator<T>;
  return {norm.before(),
          norm.after(),
          channels,
          static_cast<Value>(norm.alpha),
          static_cast<Value>(norm.beta),
          static_cast<Value>(norm.k)};
}

/// Sum of f(at[0 ... 2 kReach]) over the taps from -before to after around the middle.
template <bool kUsual, class Value, class F>
__device__ __forceinline__ Value sum_taps(const Value* at, int before, int after, F f) {
  Value sum = 0;
#pragma unroll
  for (int tap = -March::kReach; tap <= March::kReach; ++tap) {
    if (kUsual || (tap >= -before && tap <= after)) sum += f(at[tap + March::kReach]);
  }
  return sum;
}
template <class Value>
__device__ __forceinline__ Value square(Value value) {
  return value * value;
}

/// The newest of the last kCount values is the last.
template <int kCount, class Value>
__device__ __forceinline__ void push(Value (&values)[kCount], Value newest) {
#pragma unroll
  for (int i = 0; i + 1 < kCount; ++i) values[i] = values[i + 1];
  values[kCount - 1] = newest;
}

/// Threads of a block, at most, and those of a multiprocessor.
template <class T>
inline constexpr int kMarchThreads = March::kRowBytes / static_cast<int>(sizeof(T));
template <class T>
inline constexpr int kForwardThreads = sizeof(T) == 8   ? 512
                                       : sizeof(T) == 4 ? 1024
                                                        : 1536;
template <class T>
inline constexpr int kBackwardThreads = sizeof(T) == 8 ? 256 : 1024;

template <bool kUsual, class T>
__device__ __forceinline__ void march_forward(const Window<Accumulator<T>>& window, const March& march, const T* x,
                                              T* y) {
  using Value = Accumulator<T>;
  const int before = static_cast<int>(window.before), after = static_cast<int>(window.after);
  Value held[March::kTaps] = {};
  march_down<March::kReach>(
      march,
      [&](int, Value newest) {
        push(held, newest);
        const Value s = window.k + window.alpha * sum_taps<kUsual>(held, before, after, square<Value>);
        return held[March::kReach] * window.template powers<kUsual>(s).scale;
      },
      y, x);
}

template <class T>
__global__ void __launch_bounds__(kMarchThreads<T>, kForwardThreads<T> / kMarchThreads<T>)
    march_forward_kernel(const __grid_constant__ Window<Accumulator<T>> window, const __grid_constant__ March march,
                         const T* x, T* y) {
  if (march.usual) {
    march_forward<true>(window, march, x, y);
  } else {
    march_forward<false>(window, march, x, y);
  }
}

template <bool kUsual, class T>
__device__ __forceinline__ void march_backward(const Window<Accumulator<T>>& window, const March& march, const T* x,
                                               const T* g, T* dx) {
  using Value = Accumulator<T>;
  constexpr int kReach = March::kReach;
  const int before = static_cast<int>(window.before), after = static_cast<int>(window.after);
  // Of the last channels: x; what its windows add up and g s^-beta, which are known kReach channels later.
  Value held[March::kTaps] = {}, terms[March::kTaps] = {}, scaled[kReach + 1] = {};
  const Value past = Value(2) * window.alpha * window.beta;
  march_down<2 * kReach>(
      march,
      [&](int row, Value newest, Value g_value) {
        push(held, newest);
        const Value s = window.k + window.alpha * sum_taps<kUsual>(held, before, after, square<Value>);
        const auto powers = window.template powers<kUsual>(s);
        const int c = row - kReach;
        push(scaled, g_value * powers.scale);
        push(terms, c >= 0 && c < march.channels ? scaled[kReach] * held[kReach] * powers.inverse : Value(0));
        return scaled[0] - past * held[0] * sum_taps<kUsual>(terms, after, before, [](Value term) { return term; });
      },
      dx, x, g);
}

template <class T>
__global__ void __launch_bounds__(kMarchThreads<T>, kBackwardThreads<T> / kMarchThreads<T>)
    march_backward_kernel(const __grid_constant__ Window<Accumulator<T>> window, const __grid_constant__ March march,
                          const T* x, const T* g, T* dx) {
  if (march.usual) {
    march_backward<true>(window, march, x, g, dx);
  } else {
    march_backward<false>(window, march, x, g, dx);
  }
}

/// Element i: channel c of the column of channels that begins at `column`.
struct Columns {
  Divide positions, channels;
  Columns(int64_t positions_of, int64_t channels_of, int64_t count)
      : positions(positions_of, count), channels(channels_of, count) {}
  __device__ int64_t column(int64_t i, int64_t& c) const {
    const int64_t position = positions.split(i);
    c = channels.split(i);
    return i * channels.divisor * positions.divisor + position;
  }
};

template <class T>
struct Forward {
  Window<Accumulator<T>> window;
  Columns columns;
  const T* x;
  __device__ T operator()(int64_t i) const {
    int64_t c;
    const T* const column = x + columns.column(i, c);
    const auto powers = window.powers(window.sum(column, c, columns.positions.divisor));
    return from_accumulator<T>(to_accumulator(x[i]) * powers.scale);
  }
};

/// What element i adds to the sums of the windows over it: g x s^(-beta - 1).
template <class T>
struct Terms {
  using Value = Accumulator<T>;
  Window<Value> window;
  Columns columns;
  const T* x;
  __device__ Value operator()(int64_t i, T g) const {
    int64_t c;
    const T* const column = x + columns.column(i, c);
    const auto powers = window.powers(window.sum(column, c, columns.positions.divisor));
    return to_accumulator(g) * to_accumulator(x[i]) * powers.scale * powers.inverse;
  }
};

template <class T>
struct Backward {
  using Value = Accumulator<T>;
  Window<Value> window;
  Columns columns;
  const T* x;
  const Value* terms;
  __device__ T operator()(int64_t i, T g) const {
    int64_t c;
    const int64_t begin = columns.column(i, c), step = columns.positions.divisor;
    double sum = 0;
    const int64_t last = min(window.channels - 1, c + window.before);
    for (int64_t j = max(int64_t{0}, c - window.after); j <= last; ++j) {
      sum += static_cast<double>(terms[begin + j * step]);
    }
    const Value past = Value(2) * window.alpha * window.beta * to_accumulator(x[i]);
    const auto powers = window.powers(window.sum(x + begin, c, step));
    return from_accumulator<T>(to_accumulator(g) * powers.scale - past * static_cast<Value>(sum));
  }
};

/// `x`, or a copy of it that begins at a granule.
template <class T>
Tensor from_granule(const Tensor& x) {
  if (is_aligned<T, kWide<T>>(x.data<T>())) return x;
  const Tensor moved = empty(x.shape(), x.options());
  halo::copy(x, moved);
  return moved;
}

}  // namespace

void local_response_norm_forward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& y) {
  constexpr const char* kName = "local_response_norm";
  if (x.numel() == 0) return;
  const int64_t images = x.size(0), channels = x.size(1), positions = x.numel() / (images * channels);
  dispatch_floating(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    if (March::serves(norm, channels, positions)) {
      const Tensor from = from_granule<T>(x);
      const auto march = March::of<T>(norm, images, channels, positions);
      const DeviceScope scope(x.device());
      return launch(kName, march_forward_kernel<T>, march.blocks(), march.threads, March::bytes<T>(1), scope.stream(),
                    window<T>(norm, channels), march, from.data<T>(), y.data<T>());
    }
    generate<1>(kName, Forward<T>{window<T>(norm, channels), Columns(positions, channels, x.numel()), x.data<T>()},
                Elements<T>{y});
  });
}

void local_response_norm_backward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& g, const Tensor& dx) {
  constexpr const char* kName = "local_response_norm_backward";
  if (x.numel() == 0) return;
  const int64_t images = x.size(0), channels = x.size(1), positions = x.numel() / (images * channels);
  dispatch_floating(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    if (!March::serves(norm, channels, positions)) {
      using Value = Accumulator<T>;
      const Columns columns(positions, channels, x.numel());
      const Tensor terms = empty(x.shape(), {.dtype = dtype_of<Value>(), .device = x.device()});
      generate<1>(kName, Terms<T>{window<T>(norm, channels), columns, x.data<T>()}, Elements<Value>{terms},
                  Elements<T>{g});
      return generate<1>(kName, Backward<T>{window<T>(norm, channels), columns, x.data<T>(), terms.data<Value>()},
                         Elements<T>{dx}, Elements<T>{g});
    }
    const Tensor from = from_granule<T>(x), up = from_granule<T>(g);
    const DeviceScope scope(x.device());
    const auto march = March::of<T>(norm, images, channels, positions);
    launch(kName, march_backward_kernel<T>, march.blocks(), march.threads, March::bytes<T>(2), scope.stream(),
           window<T>(norm, channels), march, from.data<T>(), up.data<T>(), dx.data<T>());
  });
}

}  // namespace halo::cuda
