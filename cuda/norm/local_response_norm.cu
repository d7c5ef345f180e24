// Local response normalisation. Windows of up to five channels, which is what networks use, are marched over: a thread
// keeps a run of channels at one position in registers, with the neighbours its windows reach. Larger ones: a thread an
// element, and backward keeps what windows add up in a tensor.
#include <halo/ops/local_response_norm_backend.h>

#include <algorithm>

#include "../device/map.cuh"
#include "../device/number.cuh"

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
      float root, fourth;  // the root is never subnormal
      asm("rsqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(s));
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

constexpr int kThreads = 256;

/// The marching kernels: a block has neighbouring positions (of all images, one behind the other) and a run of
/// channels, kChunk at a time; the next block has the next run.
struct March {
  static constexpr int kChunk = 4, kReach = 2, kTaps = 2 * kReach + 1, kForwardRun = 16;
  static constexpr int64_t kBlocksWanted = 4096;  ///< rather than longer runs, at whose ends neighbours are read again
  Divide positions, runs;
  int64_t columns;  ///< positions of all images
  int run;          ///< channels
  bool usual;       ///< windows of five channels and beta 3/4: without choices in the loops

  /// `run_of`: channels; 0: as many as leave the wanted blocks.
  March(const LocalResponseNorm& norm, int64_t images, int64_t channels, int64_t positions_of, int run_of = 0)
      : positions(positions_of, images * positions_of),
        columns(images * positions_of),
        run(run_of),
        usual(norm.before() == kReach && norm.after() == kReach && norm.beta == 0.75) {
    const int64_t blocks = (columns + kThreads - 1) / kThreads, chunks = (channels + kChunk - 1) / kChunk;
    const int64_t wanted = std::clamp<int64_t>(kBlocksWanted / blocks, 1, std::max<int64_t>(chunks / 4, 1));
    if (run == 0) run = static_cast<int>((chunks + wanted - 1) / wanted * kChunk);
    const int64_t needed = (channels + run - 1) / run;
    runs = Divide(needed, blocks * needed);
  }
  static bool serves(const LocalResponseNorm& norm, int64_t channels) {
    return norm.size <= kTaps && channels < (int64_t{1} << 30);
  }
  unsigned blocks() const { return static_cast<unsigned>((columns + kThreads - 1) / kThreads * runs.divisor); }
};

/// Where a thread marches: channels first ... end - 1 at its position; channel c is element begin + c * step.
struct Marcher {
  int first, end, channels;
  int64_t begin, step;
  bool active;
  __device__ Marcher(const March& march, int64_t channels_of) : channels(static_cast<int>(channels_of)) {
    int64_t tile = blockIdx.x;
    first = static_cast<int>(march.runs.split(tile)) * march.run;
    end = min(first + march.run, channels);
    int64_t image = tile * kThreads + threadIdx.x;
    active = image < march.columns;
    const int64_t position = march.positions.split(image);
    step = march.positions.divisor;
    begin = image * channels_of * step + position;
  }
  /// Whether channel c is there.
  __device__ __forceinline__ bool has(int c) const {
    return static_cast<unsigned>(c) < static_cast<unsigned>(channels);
  }
  /// values[i] = channel c + i of x, 0 where there is none.
  template <int kCount, class T, class Value>
  __device__ __forceinline__ void load(const T* x, int c, Value* values) const {
    const T* at = x + begin + c * step;
#pragma unroll
    for (int i = 0; i < kCount; ++i, at += step) values[i] = has(c + i) ? to_accumulator(*at) : Value(0);
  }
};

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

/// values[i] = values[kCount + i] for all i < kKept.
template <int kCount, int kKept, class Value>
__device__ __forceinline__ void move_down(Value* values) {
#pragma unroll
  for (int i = 0; i < kKept; ++i) values[i] = values[kCount + i];
}

/// All of a run of kForwardRun channels at once, for as many loads on their way as there can be.
template <bool kUsual, class T>
__device__ __forceinline__ void march_forward(const Window<Accumulator<T>>& window, const Marcher& at, const T* x,
                                              T* y) {
  using Value = Accumulator<T>;
  constexpr int kRun = March::kForwardRun, kReach = March::kReach;
  const int before = static_cast<int>(window.before), after = static_cast<int>(window.after);
  Value held[kRun + 2 * kReach];
  at.load<kRun + 2 * kReach>(x, at.first - kReach, held);
  T* out = y + at.begin + at.first * at.step;
#pragma unroll
  for (int i = 0; i < kRun; ++i, out += at.step) {
    const Value s = window.k + window.alpha * sum_taps<kUsual>(held + i, before, after, square<Value>);
    if (at.has(at.first + i)) *out = from_accumulator<T>(held[i + kReach] * window.template powers<kUsual>(s).scale);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    march_forward_kernel(const __grid_constant__ Window<Accumulator<T>> window, const __grid_constant__ March march,
                         const T* x, T* y) {
  const Marcher at(march, window.channels);
  if (!at.active) return;
  if (march.usual) {
    march_forward<true>(window, at, x, y);
  } else {
    march_forward<false>(window, at, x, y);
  }
}

template <bool kUsual, class T>
__device__ __forceinline__ void march_backward(const Window<Accumulator<T>>& window, const Marcher& at, const T* x,
                                               const T* g, T* dx) {
  using Value = Accumulator<T>;
  constexpr int kChunk = March::kChunk, kReach = March::kReach;
  const int before = static_cast<int>(window.before), after = static_cast<int>(window.after);
  // x from channel c - 2 kReach on, what its windows add up from c - kReach on, and g s^-beta from c on.
  Value held[4 * kReach + kChunk], terms[2 * kReach + kChunk], scaled[kReach + kChunk];
  Value next_x[kChunk], next_g[kChunk], first_g[2 * kReach];
  // The term of channel c, whose window begins at `taps`, and its g s^-beta.
  const auto term_of = [&](int c, const Value* taps, Value g_value, Value& term) {
    const Value s = window.k + window.alpha * sum_taps<kUsual>(taps, before, after, square<Value>);
    const auto powers = window.template powers<kUsual>(s);
    const Value result = g_value * powers.scale;
    term = at.has(c) ? result * taps[kReach] * powers.inverse : Value(0);
    return result;
  };
  at.load<4 * kReach>(x, at.first - 2 * kReach, held);
  at.load<2 * kReach>(g, at.first - kReach, first_g);
  at.load<kChunk>(x, at.first + 2 * kReach, next_x);
  at.load<kChunk>(g, at.first + kReach, next_g);
#pragma unroll
  for (int i = 0; i < 2 * kReach; ++i) {
    const Value result = term_of(at.first - kReach + i, held + i, first_g[i], terms[i]);
    if (i >= kReach) scaled[i - kReach] = result;
  }
  const Value past = Value(2) * window.alpha * window.beta;
  for (int c = at.first; c < at.end; c += kChunk) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      held[4 * kReach + i] = next_x[i];
      scaled[kReach + i] = next_g[i];
    }
    const int next = c + kChunk < at.end ? c + kChunk : at.channels;
    at.load<kChunk>(x, next + 2 * kReach, next_x);
    at.load<kChunk>(g, next + kReach, next_g);
    T* out = dx + at.begin + c * at.step;
#pragma unroll
    for (int i = 0; i < kChunk; ++i, out += at.step) {
      scaled[kReach + i] = term_of(c + kReach + i, held + 2 * kReach + i, scaled[kReach + i], terms[2 * kReach + i]);
      const Value lost =
          past * held[i + 2 * kReach] * sum_taps<kUsual>(terms + i, after, before, [](Value term) { return term; });
      if (c + i < at.end) *out = from_accumulator<T>(scaled[i] - lost);
    }
    move_down<kChunk, 4 * kReach>(held);
    move_down<kChunk, 2 * kReach>(terms);
    move_down<kChunk, kReach>(scaled);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 8 ? 1 : 4)
    march_backward_kernel(const __grid_constant__ Window<Accumulator<T>> window, const __grid_constant__ March march,
                          const T* x, const T* g, T* dx) {
  const Marcher at(march, window.channels);
  if (!at.active) return;
  if (march.usual) {
    march_backward<true>(window, at, x, g, dx);
  } else {
    march_backward<false>(window, at, x, g, dx);
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

}  // namespace

void local_response_norm_forward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& y) {
  constexpr const char* kName = "local_response_norm";
  if (x.numel() == 0) return;
  const int64_t images = x.size(0), channels = x.size(1), positions = x.numel() / (images * channels);
  dispatch_floating(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const in = x.data<T>();
    if (March::serves(norm, channels)) {
      const March march(norm, images, channels, positions, March::kForwardRun);
      const DeviceScope scope(x.device());
      return launch(kName, march_forward_kernel<T>, march.blocks(), kThreads, 0, scope.stream(),
                    window<T>(norm, channels), march, in, y.data<T>());
    }
    generate<1>(kName, Forward<T>{window<T>(norm, channels), Columns(positions, channels, x.numel()), in},
                Elements<T>{y});
  });
}

void local_response_norm_backward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& g, const Tensor& dx) {
  constexpr const char* kName = "local_response_norm_backward";
  if (x.numel() == 0) return;
  const int64_t images = x.size(0), channels = x.size(1), positions = x.numel() / (images * channels);
  dispatch_floating(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const T *const in = x.data<T>(), *const up = g.data<T>();
    if (!March::serves(norm, channels)) {
      using Value = Accumulator<T>;
      const Columns columns(positions, channels, x.numel());
      const Tensor terms = empty(x.shape(), {.dtype = dtype_of<Value>(), .device = x.device()});
      generate<1>(kName, Terms<T>{window<T>(norm, channels), columns, in}, Elements<Value>{terms}, Elements<T>{g});
      return generate<1>(kName, Backward<T>{window<T>(norm, channels), columns, in, terms.data<Value>()},
                         Elements<T>{dx}, Elements<T>{g});
    }
    const DeviceScope scope(x.device());
    const March march(norm, images, channels, positions);
    launch(kName, march_backward_kernel<T>, march.blocks(), kThreads, 0, scope.stream(), window<T>(norm, channels),
           march, in, up, dx.data<T>());
  });
}

}  // namespace halo::cuda
