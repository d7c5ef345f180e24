// Local response normalisation: a thread an element sums its window of channels. Backward marches: a block holds a tile
// of channels (with the neighbours its windows reach) by positions in shared memory, so that each value is read and
// each power taken about once.
#include <halo/ops/local_response_norm_backend.h>

#include "../device/map.cuh"

namespace halo::cuda {
namespace {

template <class T>
struct Window {
  int64_t before, after, channels;
  T alpha, beta, k;
  /// k + alpha * sum of squares around channel c, whose element is x[c * step].
  __device__ T sum(const T* x, int64_t c, int64_t step) const {
    const int64_t first = max(int64_t{0}, c - before), last = min(channels - 1, c + after);
    T squares = 0;
    for (int64_t j = first; j <= last; ++j) squares += x[j * step] * x[j * step];
    return k + alpha * squares;
  }
};

template <class T>
Window<T> window(const LocalResponseNorm& norm, int64_t channels) {
  return {norm.before(),         norm.after(), channels, static_cast<T>(norm.alpha), static_cast<T>(norm.beta),
          static_cast<T>(norm.k)};
}

template <class T>
struct Forward {
  Window<T> window;
  Divide positions, channels;
  const T* x;
  __device__ T operator()(int64_t i) const {
    int64_t row = i;
    const int64_t position = positions.split(row);
    const int64_t c = channels.split(row);
    const T* const column = x + row * window.channels * positions.divisor + position;
    return x[i] * pow(window.sum(column, c, positions.divisor), -window.beta);
  }
};

/// One block's piece: `tile` channels by `lanes` positions of one image.
struct Tiling {
  int64_t positions, tile;
  int lanes, rows_held;  ///< channels held: tile and what windows of windows reach
};

constexpr int kThreads = 256;
constexpr int64_t kTile = 32;

template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const __grid_constant__ Window<T> window, const __grid_constant__ Tiling tiling, const T* x,
                    const T* g, T* dx) {
  extern __shared__ double shared[];
  T* const held = reinterpret_cast<T*>(shared);             // (rows_held, lanes) x
  T* const terms = held + tiling.rows_held * tiling.lanes;  // (rows_held, lanes) g x s^(-beta - 1)
  const int lanes = tiling.lanes, lane = static_cast<int>(threadIdx.x) % lanes;
  const int team = static_cast<int>(threadIdx.x) / lanes, teams = kThreads / lanes;
  const int64_t position = int64_t{blockIdx.x} * lanes + lane;
  const bool active = position < tiling.positions;
  const int64_t first = blockIdx.y * tiling.tile, last = min(first + tiling.tile, window.channels);
  const int64_t reach = window.before + window.after;
  const int64_t low = max(int64_t{0}, first - reach), high = min(window.channels, last + reach);
  const int64_t base = int64_t{blockIdx.z} * window.channels * tiling.positions + position;
  for (int64_t c = low + team; c < high; c += teams) {
    held[(c - low) * lanes + lane] = active ? x[base + c * tiling.positions] : T(0);
  }
  __syncthreads();
  const auto sum_at = [&](int64_t c) { return window.sum(held + lane - low * lanes, c, lanes); };
  const int64_t low_term = max(int64_t{0}, first - window.after),
                high_term = min(window.channels, last + window.before);
  for (int64_t c = low_term + team; c < high_term; c += teams) {
    const T up = active ? g[base + c * tiling.positions] : T(0);
    terms[(c - low) * lanes + lane] = up * held[(c - low) * lanes + lane] * pow(sum_at(c), -window.beta - T(1));
  }
  __syncthreads();
  if (!active) return;
  for (int64_t c = first + team; c < last; c += teams) {
    T sum = 0;
    const int64_t to = min(window.channels - 1, c + window.before);
    for (int64_t j = max(int64_t{0}, c - window.after); j <= to; ++j) sum += terms[(j - low) * lanes + lane];
    const int64_t at = base + c * tiling.positions;
    dx[at] =
        g[at] * pow(sum_at(c), -window.beta) - T(2) * window.alpha * window.beta * held[(c - low) * lanes + lane] * sum;
  }
}

/// Images a launch: grid.z is bounded.
constexpr int64_t kImages = 32768;

}  // namespace

void local_response_norm_forward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& y) {
  if (x.numel() == 0) return;
  const int64_t channels = x.size(1), positions = x.numel() / (x.size(0) * channels);
  dispatch_float("local_response_norm", x.dtype(), [&]<class T>(std::type_identity<T>) {
    generate<true>(
        "local_response_norm",
        Forward<T>{window<T>(norm, channels), Divide(positions, x.numel()), Divide(channels, x.numel()), x.data<T>()},
        Elements<T>{y});
  });
}

void local_response_norm_backward(const LocalResponseNorm& norm, const Tensor& x, const Tensor& g, const Tensor& dx) {
  if (x.numel() == 0) return;
  const int64_t images = x.size(0), channels = x.size(1), positions = x.numel() / (images * channels);
  dispatch_float("local_response_norm_backward", x.dtype(), [&]<class T>(std::type_identity<T>) {
    constexpr int64_t kSharedBytes = 96 * 1024;
    const int64_t held = std::min(channels, kTile + 2 * (norm.before() + norm.after()));
    int64_t lanes = 32;
    while (lanes > 1 && held * lanes * 2 * static_cast<int64_t>(sizeof(T)) > kSharedBytes) lanes /= 2;
    const auto shared = static_cast<std::size_t>(held * lanes * 2) * sizeof(T);
    const Tiling tiling{positions, kTile, static_cast<int>(lanes), static_cast<int>(held)};
    const DeviceScope scope(x.device());
    for (int64_t image = 0; image < images; image += kImages) {
      const int64_t offset = image * channels * positions;
      const dim3 grid(static_cast<unsigned>((positions + lanes - 1) / lanes),
                      static_cast<unsigned>((channels + kTile - 1) / kTile),
                      static_cast<unsigned>(std::min(kImages, images - image)));
      launch("local_response_norm_backward", backward_kernel<T>, grid, kThreads, shared, scope.stream(),
             window<T>(norm, channels), tiling, x.data<T>() + offset, g.data<T>() + offset, dx.data<T>() + offset);
    }
  });
}

}  // namespace halo::cuda
