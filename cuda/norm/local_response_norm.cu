// Local response normalisation. Windows of up to five channels, which is what networks use, are marched over: a thread
// goes down the channels at one position and keeps in registers what windows reach. Larger ones: a thread an element,
// and backward keeps what windows add up in a tensor.
#include <halo/core/copy.h>
#include <halo/ops/local_response_norm_backend.h>

#include <algorithm>

#include "../device/map.cuh"
#include "../device/number.cuh"
#include "../runtime/traits.h"
#include "channel_march_wide.cuh"

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

/// The newest of the last kCount values is the last.
template <int kCount, class Value>
__device__ __forceinline__ void push(Value (&values)[kCount], Value newest) {
#pragma unroll
  for (int i = 0; i + 1 < kCount; ++i) values[i] = values[i + 1];
  values[kCount - 1] = newest;
}

/// What windows of values that come one after another add up to: the one kReach before the newest, once that is known.
/// kUsual: windows of five, of which those around channels 2 j and 2 j + 1 have four values in common.
template <bool kUsual, class Value>
class WindowSums {
 public:
  /// `even`: whether the value is an even channel's. Windows reach `before` before and `after` after the middle.
  __device__ __forceinline__ Value next(bool even, Value newest, int before, int after) {
    Value sum = 0;
    push(last_, newest);
    if constexpr (!kUsual) {
#pragma unroll
      for (int tap = -March::kReach; tap <= March::kReach; ++tap) {
        if (tap >= -before && tap <= after) sum += last_[tap + March::kReach];
      }
    } else if (even) {
      const Value pair = last_[3] + last_[4];
      shared_ = pair_ + pair;
      pair_ = pair;
      sum = last_[0] + shared_;
    } else {
      sum = shared_ + newest;
    }
    return sum;
  }

 private:
  static_assert(March::kReach == 2);
  Value last_[March::kTaps] = {};
  Value pair_ = 0, shared_ = 0;  ///< the last pair of an odd and an even channel; the last two of them
};

/// Blocks of a multiprocessor.
template <class T>
inline constexpr int kForwardBlocks = sizeof(T) == 2 ? 4 : 3;
template <bool kUsual>
inline constexpr int kBackwardBlocks = kUsual ? 3 : 2;

template <bool kUsual, class T>
struct ForwardColumn {
  using Value = Accumulator<T>;
  Window<Value> window;
  Value held[March::kReach + 1] = {};
  WindowSums<kUsual, Value> sums = {};

  __device__ __forceinline__ Value operator()(int row, Value newest) {
    push(held, newest);
    const Value squares =
        sums.next((row & 1) == 0, newest * newest, static_cast<int>(window.before), static_cast<int>(window.after));
    return held[0] * window.template powers<kUsual>(window.k + window.alpha * squares).scale;
  }
};

template <bool kUsual, class T>
__global__ void __launch_bounds__(March::kMostThreads<T>, kForwardBlocks<T>)
    march_forward_kernel(const __grid_constant__ Window<Accumulator<T>> window, const __grid_constant__ March march,
                         const T* x, T* y) {
  march_down<March::kReach>(march, ForwardColumn<kUsual, T>{window}, y, x);
}

inline constexpr int kWideBlocks = 2;

template <bool kUsual, class T>
__global__ void __launch_bounds__(WideMarch::kMostThreads, kWideBlocks)
    march_wide_kernel(const __grid_constant__ Window<Accumulator<T>> window, const __grid_constant__ WideMarch march,
                      const T* x, T* y) {
#if __CUDA_ARCH__ >= 900  // nobody launches it elsewhere
  march_down_wide<March::kReach>(march, ForwardColumn<kUsual, T>{window}, y, x);
#endif
}

/// Of the last channels: x; what its windows add up and g s^-beta, which are known kReach channels later.
template <bool kUsual, class T>
struct BackwardColumn {
  using Value = Accumulator<T>;
  static constexpr int kReach = March::kReach;
  Window<Value> window;
  int channels;
  Value past;
  Value held[2 * kReach + 1] = {}, scaled[kReach + 1] = {};
  WindowSums<kUsual, Value> squares = {}, terms = {};

  __device__ __forceinline__ Value operator()(int row, Value newest, Value g_value) {
    const int before = static_cast<int>(window.before), after = static_cast<int>(window.after), c = row - kReach;
    const bool even = (row & 1) == 0;
    push(held, newest);
    const Value s = window.k + window.alpha * squares.next(even, newest * newest, before, after);
    const auto powers = window.template powers<kUsual>(s);
    push(scaled, g_value * powers.scale);
    // Channels that there are not are zeros; unless k is 0, so are their terms.
    const bool exists = kUsual || (c >= 0 && c < channels);
    const Value term = exists ? scaled[kReach] * (held[kReach] * powers.inverse) : Value(0);
    return scaled[0] - past * held[0] * terms.next(even, term, after, before);
  }
};

template <bool kUsual, class T>
__global__ void __launch_bounds__(March::kMostThreads<T>, kBackwardBlocks<kUsual>)
    march_backward_kernel(const __grid_constant__ Window<Accumulator<T>> window, const __grid_constant__ March march,
                          const T* x, const T* g, T* dx) {
  const auto past = 2 * window.alpha * window.beta;
  march_down<2 * March::kReach>(march, BackwardColumn<kUsual, T>{window, march.channels, past}, dx, x, g);
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
      const auto march = March::of<T>(images, channels, positions);
      const DeviceScope scope(x.device());
      if constexpr (sizeof(T) == 2) {  // half as many blocks, if their threads have as much to do, and all the GPU has
        const auto wide = WideMarch::of<T>(images, channels, positions);
        const DeviceTraits& device = device_traits(x.device().index);
        if (device.is_hopper() && wide.threads >= 2 * march.threads &&
            wide.blocks() >= static_cast<unsigned>(device.multiprocessors * kWideBlocks)) {
          const auto kernel = March::is_usual(norm) ? march_wide_kernel<true, T> : march_wide_kernel<false, T>;
          return launch(kName, kernel, wide.blocks(), wide.threads, WideMarch::kBytes, scope.stream(),
                        window<T>(norm, channels), wide, from.data<T>(), y.data<T>());
        }
      }
      const auto kernel = March::is_usual(norm) ? march_forward_kernel<true, T> : march_forward_kernel<false, T>;
      return launch(kName, kernel, march.blocks(), march.threads, March::bytes<T>(1), scope.stream(),
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
    const auto march = March::of<T>(images, channels, positions);
    const auto kernel = March::is_usual(norm) ? march_backward_kernel<true, T> : march_backward_kernel<false, T>;
    launch(kName, kernel, march.blocks(), march.threads, March::bytes<T>(2), scope.stream(), window<T>(norm, channels),
           march, from.data<T>(), up.data<T>(), dx.data<T>());
  });
}

}  // namespace halo::cuda
