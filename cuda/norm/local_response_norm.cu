// Local response normalisation. Windows of up to five channels, which is what networks use, are marched over: a thread
// keeps a run of channels at one position in registers, with the neighbours its windows reach. Larger ones: a thread an
// element forward, and a tile of channels by positions in shared memory backward.
#include <halo/ops/local_response_norm_backend.h>

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
  bool three_quarters;  ///< beta is 0.75

  /// k + alpha * sum of squares around channel c, whose element is x[c * step].
  template <class T>
  __device__ Value sum(const T* x, int64_t c, int64_t step) const {
    const int64_t first = max(int64_t{0}, c - before), last = min(channels - 1, c + after);
    Value squares = 0;
    for (int64_t j = first; j <= last; ++j) {
      const Value value = to_accumulator(x[j * step]);
      squares += value * value;
    }
    return k + alpha * squares;
  }

  struct Powers {
    Value scale, inverse;  ///< s^-beta and 1 / s
  };
  __device__ Powers powers(Value s) const {
    if (three_quarters) {
      const Value root = rsqrt(s);
      return {root * sqrt(root), root * root};
    }
    if constexpr (sizeof(Value) == 4) {
      return {exp2f(-beta * log2f(s)), 1 / s};
    } else {
      return {pow(s, -beta), 1 / s};
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
          static_cast<Value>(norm.k),
          norm.beta == 0.75};
}

constexpr int kThreads = 256;

/// The marching kernels: a warp has neighbouring positions (of all images, one behind the other) and a run of channels;
/// the next warp has the next run.
struct March {
  static constexpr int kRun = 16, kReach = 2, kTaps = 2 * kReach + 1, kWarp = 32;
  Divide positions, runs;
  int64_t columns;  ///< positions of all images

  March(int64_t images, int64_t channels, int64_t positions_of)
      : positions(positions_of, images * positions_of),
        runs((channels + kRun - 1) / kRun, (images * positions_of / kWarp + 1) * ((channels + kRun - 1) / kRun)),
        columns(images * positions_of) {}
  static bool serves(const LocalResponseNorm& norm) { return norm.size <= kTaps; }
  unsigned blocks() const {
    return static_cast<unsigned>(((columns + kWarp - 1) / kWarp * runs.divisor * kWarp + kThreads - 1) / kThreads);
  }
};

/// Where a thread marches: channel `first` at its position is element `begin`.
struct Marcher {
  int64_t first, begin, step;
  bool active;
  __device__ Marcher(const March& march, int64_t channels) {
    int64_t tile = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / March::kWarp;
    first = march.runs.split(tile) * March::kRun;
    int64_t image = tile * March::kWarp + threadIdx.x % March::kWarp;
    active = image < march.columns;
    const int64_t position = march.positions.split(image);
    step = march.positions.divisor;
    begin = (image * channels + first) * step + position;
  }
  /// values[i] = channel first - reach + i of x, 0 where there is none.
  template <int kReach, int kCount, class T, class Value>
  __device__ __forceinline__ void load(const T* x, int64_t channels, Value (&values)[kCount]) const {
    const T* at = x + begin - kReach * step;
#pragma unroll
    for (int i = 0; i < kCount; ++i, at += step) {
      const int64_t c = first - kReach + i;
      values[i] = active && c >= 0 && c < channels ? to_accumulator(*at) : Value(0);
    }
  }
};

/// Sum of at[0 ... 2 kReach] over the taps from -before to after around the middle.
template <class Value>
__device__ __forceinline__ Value sum_taps(const Value* at, int before, int after) {
  Value sum = 0;
#pragma unroll
  for (int tap = -March::kReach; tap <= March::kReach; ++tap) {
    if (tap >= -before && tap <= after) sum += at[tap + March::kReach];
  }
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    march_forward_kernel(const __grid_constant__ Window<Accumulator<T>> window, const __grid_constant__ March march,
                         const T* x, T* y) {
  using Value = Accumulator<T>;
  constexpr int kRun = March::kRun, kReach = March::kReach, kHeld = kRun + 2 * kReach;
  const Marcher at(march, window.channels);
  const int before = static_cast<int>(window.before), after = static_cast<int>(window.after);
  Value held[kHeld], squares[kHeld];
  at.load<kReach>(x, window.channels, held);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) squares[i] = held[i] * held[i];
  T* out = y + at.begin;
#pragma unroll
  for (int i = 0; i < kRun; ++i, out += at.step) {
    if (!at.active || at.first + i >= window.channels) return;
    const Value s = window.k + window.alpha * sum_taps(squares + i, before, after);
    *out = from_accumulator<T>(held[i + kReach] * window.powers(s).scale);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    march_backward_kernel(const __grid_constant__ Window<Accumulator<T>> window, const __grid_constant__ March march,
                          const T* x, const T* g, T* dx) {
  using Value = Accumulator<T>;
  constexpr int kRun = March::kRun, kReach = March::kReach, kTerms = kRun + 2 * kReach, kHeld = kTerms + 2 * kReach;
  const Marcher at(march, window.channels);
  const int before = static_cast<int>(window.before), after = static_cast<int>(window.after);
  Value held[kHeld], squares[kHeld], scaled[kTerms], terms[kTerms];  // scaled: g s^-beta, at first g
  at.load<2 * kReach>(x, window.channels, held);
  at.load<kReach>(g, window.channels, scaled);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) squares[i] = held[i] * held[i];
#pragma unroll
  for (int j = 0; j < kTerms; ++j) {
    const int64_t c = at.first - kReach + j;
    const auto powers = window.powers(window.k + window.alpha * sum_taps(squares + j, before, after));
    scaled[j] *= powers.scale;
    terms[j] = c >= 0 && c < window.channels ? scaled[j] * held[j + kReach] * powers.inverse : Value(0);
  }
  T* out = dx + at.begin;
#pragma unroll
  for (int i = 0; i < kRun; ++i, out += at.step) {
    if (!at.active || at.first + i >= window.channels) return;
    const Value past = Value(2) * window.alpha * window.beta * held[i + 2 * kReach];
    *out = from_accumulator<T>(scaled[i + kReach] - past * sum_taps(terms + i, after, before));
  }
}

template <class T>
struct Forward {
  using Value = Accumulator<T>;
  Window<Value> window;
  Divide positions, channels;
  const T* x;
  __device__ T operator()(int64_t i) const {
    int64_t row = i;
    const int64_t position = positions.split(row);
    const int64_t c = channels.split(row);
    const T* const column = x + row * window.channels * positions.divisor + position;
    const Value s = window.sum(column, c, positions.divisor);
    return from_accumulator<T>(to_accumulator(x[i]) * window.powers(s).scale);
  }
};

/// One block's piece: `tile` channels by `lanes` positions of one image.
struct Tiling {
  int64_t positions, tile;
  int lanes, rows_held;  ///< channels held: tile and what windows of windows reach
};

constexpr int64_t kTile = 32;

template <class T>
__global__ void __launch_bounds__(kThreads)
    tile_backward_kernel(const __grid_constant__ Window<Accumulator<T>> window, const __grid_constant__ Tiling tiling,
                         const T* x, const T* g, T* dx) {
  using Value = Accumulator<T>;
  extern __shared__ double shared[];
  Value* const held = reinterpret_cast<Value*>(shared);         // (rows_held, lanes) x
  Value* const terms = held + tiling.rows_held * tiling.lanes;  // (rows_held, lanes) g x s^(-beta - 1)
  const int lanes = tiling.lanes, lane = static_cast<int>(threadIdx.x) % lanes;
  const int team = static_cast<int>(threadIdx.x) / lanes, teams = kThreads / lanes;
  const int64_t position = int64_t{blockIdx.x} * lanes + lane;
  const bool active = position < tiling.positions;
  const int64_t first = blockIdx.y * tiling.tile, last = min(first + tiling.tile, window.channels);
  const int64_t reach = window.before + window.after;
  const int64_t low = max(int64_t{0}, first - reach), high = min(window.channels, last + reach);
  const int64_t base = int64_t{blockIdx.z} * window.channels * tiling.positions + position;
  for (int64_t c = low + team; c < high; c += teams) {
    held[(c - low) * lanes + lane] = active ? to_accumulator(x[base + c * tiling.positions]) : Value(0);
  }
  __syncthreads();
  const auto powers_at = [&](int64_t c) { return window.powers(window.sum(held + lane - low * lanes, c, lanes)); };
  const int64_t low_term = max(int64_t{0}, first - window.after),
                high_term = min(window.channels, last + window.before);
  for (int64_t c = low_term + team; c < high_term; c += teams) {
    const Value up = active ? to_accumulator(g[base + c * tiling.positions]) : Value(0);
    const auto powers = powers_at(c);
    terms[(c - low) * lanes + lane] = up * held[(c - low) * lanes + lane] * powers.scale * powers.inverse;
  }
  __syncthreads();
  if (!active) return;
  for (int64_t c = first + team; c < last; c += teams) {
    Value sum = 0;
    const int64_t to = min(window.channels - 1, c + window.before);
    for (int64_t j = max(int64_t{0}, c - window.after); j <= to; ++j) sum += terms[(j - low) * lanes + lane];
    const int64_t at = base + c * tiling.positions;
    const Value past = Value(2) * window.alpha * window.beta * held[(c - low) * lanes + lane];
    dx[at] = from_accumulator<T>(to_accumulator(g[at]) * powers_at(c).scale - past * sum);
  }
}

template <class T>
void tile_backward(const LocalResponseNorm& norm, int64_t images, int64_t channels, int64_t positions, const T* x,
                   const T* g, T* dx, cudaStream_t stream) {
  using Value = Accumulator<T>;
  constexpr int64_t kSharedBytes = 96 * 1024, kImages = 32768;  // a launch: grid.z is bounded
  const int64_t held = std::min(channels, kTile + 2 * (norm.before() + norm.after()));
  int64_t lanes = 32;
  while (lanes > 1 && held * lanes * 2 * static_cast<int64_t>(sizeof(Value)) > kSharedBytes) lanes /= 2;
  const auto shared = static_cast<std::size_t>(held * lanes * 2) * sizeof(Value);
  const Tiling tiling{positions, kTile, static_cast<int>(lanes), static_cast<int>(held)};
  for (int64_t image = 0; image < images; image += kImages) {
    const int64_t offset = image * channels * positions;
    const dim3 grid(static_cast<unsigned>((positions + lanes - 1) / lanes),
                    static_cast<unsigned>((channels + kTile - 1) / kTile),
                    static_cast<unsigned>(std::min(kImages, images - image)));
    launch("local_response_norm_backward", tile_backward_kernel<T>, grid, kThreads, shared, stream,
           window<T>(norm, channels), tiling, x + offset, g + offset, dx + offset);
  }
}

}  // namespace

void local_response_norm_forward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& y) {
  constexpr const char* kName = "local_response_norm";
  if (x.numel() == 0) return;
  const int64_t images = x.size(0), channels = x.size(1), positions = x.numel() / (images * channels);
  dispatch_floating(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const T* const in = x.data<T>();
    if (March::serves(norm)) {
      const March march(images, channels, positions);
      const DeviceScope scope(x.device());
      return launch(kName, march_forward_kernel<T>, march.blocks(), kThreads, 0, scope.stream(),
                    window<T>(norm, channels), march, in, y.data<T>());
    }
    generate<1>(kName,
                Forward<T>{window<T>(norm, channels), Divide(positions, x.numel()), Divide(channels, x.numel()), in},
                Elements<T>{y});
  });
}

void local_response_norm_backward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& g, const Tensor& dx) {
  constexpr const char* kName = "local_response_norm_backward";
  if (x.numel() == 0) return;
  const int64_t images = x.size(0), channels = x.size(1), positions = x.numel() / (images * channels);
  dispatch_floating(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const T *const in = x.data<T>(), *const up = g.data<T>();
    const DeviceScope scope(x.device());
    if (!March::serves(norm)) {
      return tile_backward<T>(norm, images, channels, positions, in, up, dx.data<T>(), scope.stream());
    }
    const March march(images, channels, positions);
    launch(kName, march_backward_kernel<T>, march.blocks(), kThreads, 0, scope.stream(), window<T>(norm, channels),
           march, in, up, dx.data<T>());
  });
}

}  // namespace halo::cuda
