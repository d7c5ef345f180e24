// Causal depthwise convolution with two to four neighbouring taps in half types, straight from memory: a thread has a
// pack of 16 bytes and the elements before it in registers, so that there is a load for eight elements where
// causal_conv1d_tile.cuh has one a tap and element. Operands may begin anywhere: then a thread shifts what it needs out
// of the granules around. Either way the roundings are the same, which is why no product and sum is left to the
// compiler to join.
#include "../device/async_copy.cuh"
#include "../device/packs.cuh"
#include "../device/widen.cuh"
#include "../runtime/data.h"
#include "../runtime/device.h"
#include "causal_conv1d_packs.h"
#include "causal_conv1d_tile.cuh"

namespace halo::cuda::causal {
namespace {

constexpr int kPackThreads = 256;
constexpr int kBefore = 4;         ///< elements before a pack that come in one load: taps reach no further
constexpr int kBackwardPacks = 2;  ///< of a thread of the backward pass, a block of threads apart

template <class T>
struct PackParams {
  const T *x, *weight, *bias, *state;  ///< bias and state may be null
  const T *g, *g_state;                ///< backward: upstream gradients, the last may be null
  T* y;                                ///< forward
  T *dx, *dstate;                      ///< backward, may be null
  double* partials;                    ///< backward, as of TileParams; may be null
  int x_shift, g_shift;                ///< bytes from a granule to where they begin
  bool granules;                       ///< the result begins at one
  bool silu;
  uint32_t packs;          ///< of all rows
  int splits;              ///< backward: blocks a channel
  FastDivide by_packs;     ///< of a row
  FastDivide by_segments;  ///< backward: blocks a row
  FastDivide by_channel;
};

/// N words of two elements. Unless `kWhole`, with those of the granule behind them, and to be shifted.
template <class T, int N, bool kWhole>
struct Words {
  uint32_t at[kWhole ? N : N + 4];

  /// The granule at `from` ends the words; those before it, if any, are at `before`. The granule behind, where it is
  /// the `last`, is only read as far as the shift says.
  __device__ void load(const T* from, const T* before, bool last, int shift) {
    constexpr int kFirst = N - 4;
    if constexpr (kFirst > 0) {
      const auto pack = *reinterpret_cast<const Pack<uint32_t, kFirst>*>(before);
#pragma unroll
      for (int i = 0; i < kFirst; ++i) at[i] = pack.at[i];
    }
    const auto take = [&](int first, const T* granule) {
      const auto pack = *reinterpret_cast<const Pack<uint32_t, 4>*>(granule);
#pragma unroll
      for (int i = 0; i < 4; ++i) at[first + i] = pack.at[i];
    };
    take(kFirst, from);
    if constexpr (!kWhole) {
      const T* const behind = from + kWide<T>;
      take(N, last ? from : behind);
      if (last) {
#pragma unroll
        for (int e = 0; e < kWide<T>; ++e) {
          const uint32_t bits = e < shift / 2 ? behind[e].bits : 0;
          at[N + e / 2] = e % 2 == 0 ? bits : at[N + e / 2] | bits << 16;
        }
      }
    }
  }
  /// The elements `shift` bytes on.
  __device__ __forceinline__ void unpack(int shift, float (&values)[2 * N]) const {
    uint32_t words[N + 1];
    if constexpr (kWhole) {
#pragma unroll
      for (int i = 0; i < N; ++i) words[i] = at[i];
    } else {
      uint32_t near[N + 2];
#pragma unroll
      for (int i = 0; i < N + 2; ++i) near[i] = (shift & 8) != 0 ? at[i + 2] : at[i];
#pragma unroll
      for (int i = 0; i < N + 1; ++i) words[i] = (shift & 4) != 0 ? near[i + 1] : near[i];
#pragma unroll
      for (int i = 0; i < N; ++i) words[i] = __byte_perm(words[i], words[i + 1], (shift & 2) != 0 ? 0x5432 : 0x3210);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) device::unpack_word<T>(words[i], values + 2 * i);
  }
};

/// A channel's filter, and where its row is.
template <class T, int K, bool kWhole>
struct PackRow {
  static constexpr int kReach = K - 1, kSize = kWide<T>;
  static_assert(kReach <= kBefore && kBefore <= kSize);
  using Window = Words<T, (kBefore + kSize) / 2, kWhole>;
  using Gradients = Words<T, kSize / 2, kWhole>;
  uint32_t row, sample, channel;
  float taps[K], bias;

  __device__ PackRow(const PackParams<T>& p, uint32_t index) : row(index) {
    sample = p.by_channel.divide(row, channel);
#pragma unroll
    for (int k = 0; k < K; ++k) taps[k] = to_accumulator(p.weight[channel * K + k]);
    bias = p.bias != nullptr ? to_accumulator(p.bias[channel]) : 0.0f;
  }
  /// A pack of x and what is before it as they lie in memory; before the first of a row there is anything.
  __device__ static Window load(const PackParams<T>& p, uint32_t pack, uint32_t column) {
    const T* const from = p.x - p.x_shift / 2 + int64_t{pack} * kSize;
    Window window;
    window.load(from, from - (column > 0 ? kBefore : 0), pack + 1 == p.packs, p.x_shift);
    return window;
  }
  __device__ static Gradients load_gradients(const PackParams<T>& p, uint32_t pack) {
    const T* const from = p.g - p.g_shift / 2 + int64_t{pack} * kSize;
    Gradients gradients;
    gradients.load(from, from, pack + 1 == p.packs, p.g_shift);
    return gradients;
  }
  /// values[j]: position column * kSize + j - kBefore.
  __device__ __forceinline__ void unpack(const PackParams<T>& p, const Window& loaded, uint32_t column,
                                         float (&values)[kBefore + kSize]) const {
    loaded.unpack(p.x_shift, values);
    if (column == 0) {
#pragma unroll
      for (int j = 0; j < kReach; ++j) {
        values[kBefore - kReach + j] = p.state != nullptr ? to_accumulator(p.state[int64_t{row} * kReach + j]) : 0.0f;
      }
    }
  }
  /// The sum at position j of a pack.
  __device__ __forceinline__ float sum(const float (&values)[kBefore + kSize], int j) const {
    float sum = bias;
#pragma unroll
    for (int k = 0; k < K; ++k) sum = fmaf(taps[k], values[kBefore - kReach + j + k], sum);
    return sum;
  }
  __device__ static void store(const PackParams<T>& p, T* to, uint32_t pack, const Pack<float, kSize>& values) {
    const auto rounded = device::narrow<T>(values);
    T* const at = to + int64_t{pack} * kSize;
    if (kWhole || p.granules) {
      *reinterpret_cast<Pack<T, kSize>*>(at) = rounded;
    } else {
#pragma unroll
      for (int j = 0; j < kSize; ++j) at[j] = rounded.at[j];
    }
  }
};

template <class T, int K, bool kWhole>
__global__ void __launch_bounds__(kPackThreads) packs_forward_kernel(const __grid_constant__ PackParams<T> p) {
  using Row = PackRow<T, K, kWhole>;
  constexpr int kSize = Row::kSize;
  const uint32_t pack = blockIdx.x * kPackThreads + threadIdx.x;
  if (pack >= p.packs) return;
  uint32_t column;
  const uint32_t row = p.by_packs.divide(pack, column);
  const auto loaded = Row::load(p, pack, column);
  const Row own(p, row);
  float window[kBefore + kSize];
  own.unpack(p, loaded, column, window);
  Pack<float, kSize> sums;
#pragma unroll
  for (int j = 0; j < kSize; ++j) sums.at[j] = own.sum(window, j);
  if (p.silu) apply_silu<T>(sums.at);
  Row::store(p, p.y, pack, sums);
}

__device__ __forceinline__ float sum_of(const float (&values)[8]) {
  float sum = values[0];
#pragma unroll
  for (int j = 1; j < 8; ++j) sum += values[j];
  return sum;
}

/// A block has packs threadIdx.x, threadIdx.x + blockDim.x, ... of its part of a row. The gradients of sums after a
/// thread's pack come from its neighbour: by a shuffle, between warps through shared memory.
template <class T, int K, bool kWhole>
__global__ void __launch_bounds__(kPackThreads, kWhole ? 4 : 3)
    packs_backward_kernel(const __grid_constant__ PackParams<T> p) {
  using Row = PackRow<T, K, kWhole>;
  constexpr int kSize = Row::kSize, kReach = Row::kReach, kMostWarps = kPackThreads / 32, kEach = kBackwardPacks;
  __shared__ float edges[kEach * kMostWarps + 1][kReach];  ///< first gradients of each warp's packs, and what follows
  __shared__ float scratch[K + 1][kPackThreads];
  const uint32_t thread = threadIdx.x, threads = blockDim.x, lane = thread % 32, warp = thread / 32;
  uint32_t segment;
  const uint32_t row = p.by_segments.divide(blockIdx.x, segment), packs = p.by_packs.divisor;
  const uint32_t first = segment * threads * kEach + thread, behind = (segment + 1) * threads * kEach;
  const auto column_of = [&](int i) { return first + static_cast<uint32_t>(i) * threads; };
  typename Row::Window loaded[kEach];
  typename Row::Gradients up[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t column = min(column_of(i), packs - 1);
    loaded[i] = Row::load(p, row * packs + column, column);
    up[i] = Row::load_gradients(p, row * packs + column);
  }
  const Row own(p, row);

  float of_sums[kEach][kSize], of_taps[K] = {}, of_bias = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    float window[kBefore + kSize], g[kSize];
    own.unpack(p, loaded[i], column_of(i), window);
    up[i].unpack(p.g_shift, g);
    float slopes[kSize] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (p.silu) {  // all at once, whose latencies then overlap
#pragma unroll
      for (int j = 0; j < kSize; ++j) slopes[j] = own.sum(window, j);
      to_slopes<T>(slopes);
    }
    const bool exists = column_of(i) < packs;
#pragma unroll
    for (int j = 0; j < kSize; ++j) of_sums[i][j] = exists ? __fmul_rn(g[j], slopes[j]) : 0;
    float all = sum_of(of_sums[i]);
    if (all != all) {  // some slope is not finite; where g is 0 that does not matter
#pragma unroll
      for (int j = 0; j < kSize; ++j) of_sums[i][j] = g[j] == 0 ? 0 : of_sums[i][j];
      all = sum_of(of_sums[i]);
    }
    of_bias += all;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        of_taps[k] = fmaf(of_sums[i][j], window[kBefore - kReach + j + k], of_taps[k]);
      }
    }
    if (lane == 0) {
#pragma unroll
      for (int j = 0; j < kReach; ++j) edges[i * (threads / 32) + warp][j] = of_sums[i][j];
    }
  }
  if (thread < kReach) {  // what follows the block's part
    float after = 0;
    if (behind < packs) {
      const int64_t at = (int64_t{row} * packs + behind) * kSize + thread;
      const float g = to_accumulator(p.g[at]);
      float slope[1] = {own.bias};
#pragma unroll
      for (int k = 0; k < K; ++k) slope[0] = fmaf(own.taps[k], to_accumulator(p.x[at - kReach + k]), slope[0]);
      to_slopes<T>(slope);
      after = p.silu && g != 0 ? g * slope[0] : g;
    }
    edges[kEach * (threads / 32)][thread] = after;
  }
#pragma unroll
  for (int k = 0; k < K; ++k) scratch[k][thread] = of_taps[k];
  scratch[K][thread] = of_bias;
  __syncthreads();

#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t column = column_of(i);
    float gradients[kSize + kReach];
#pragma unroll
    for (int j = 0; j < kSize; ++j) gradients[j] = of_sums[i][j];
#pragma unroll
    for (int j = 0; j < kReach; ++j) {
      const float next = __shfl_down_sync(0xffffffffu, of_sums[i][j], 1);
      gradients[kSize + j] = lane < 31 ? next : edges[i * (threads / 32) + warp + 1][j];
    }
    Pack<float, kSize> of_x{};
    if (p.g_state != nullptr && column == packs - 1) {
#pragma unroll
      for (int j = 0; j < kReach; ++j) {
        of_x.at[kSize - kReach + j] = to_accumulator(p.g_state[int64_t{row} * kReach + j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
#pragma unroll
      for (int k = 0; k < K; ++k) of_x.at[j] = fmaf(own.taps[k], gradients[j + kReach - k], of_x.at[j]);
    }
    if (p.dx != nullptr && column < packs) Row::store(p, p.dx, row * packs + column, of_x);
    if (p.dstate != nullptr && column == 0) {
#pragma unroll
      for (int j = 0; j < kReach; ++j) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k <= j; ++k) sum = fmaf(own.taps[k], gradients[j - k], sum);
        p.dstate[int64_t{row} * kReach + j] = from_accumulator<T>(sum);
      }
    }
  }
  if (p.partials == nullptr) return;
  const int64_t split = int64_t{own.sample} * p.by_segments.divisor + segment;
  for (uint32_t k = warp; k <= K; k += threads / 32) {
    float sum = 0;
    for (uint32_t t = lane; t < threads; t += 32) sum += scratch[k][t];
    sum = conv::warp_sum(sum);
    if (lane == 0) p.partials[(int64_t{own.channel} * (K + 1) + k) * p.splits + split] = static_cast<double>(sum);
  }
}

/// Bytes from a granule to `tensor`.
int shift_of(const void* tensor) { return static_cast<int>(reinterpret_cast<uintptr_t>(tensor) % device::kGranule); }

/// The operands; `g` (null: forward) and the result, which may be null, too.
template <class T>
PackParams<T> pack_params(const CausalConv1dProblem& p, const CausalConv1dTensors& t, const T* g, const T* result) {
  PackParams<T> params{};
  params.x = t.x.data<T>();
  params.weight = t.weight.data<T>();
  params.bias = data_or_null<T>(t.bias);
  params.state = data_or_null<T>(t.state);
  params.g = g;
  params.x_shift = shift_of(params.x);
  params.g_shift = shift_of(g);
  params.granules = shift_of(result) == 0;
  params.silu = p.silu;
  const int64_t packs = p.length / kWide<T>;
  params.packs = static_cast<uint32_t>(p.batch * p.channels * packs);
  params.by_packs = FastDivide(static_cast<uint32_t>(packs));
  params.by_channel = FastDivide(static_cast<uint32_t>(p.channels));
  return params;
}

/// Calls f with the number of taps, and whether nothing is to be shifted.
template <class T, class F>
void with_kernel(const CausalConv1dProblem& p, const PackParams<T>& params, F&& f) {
  const bool whole = params.x_shift == 0 && params.g_shift == 0 && params.granules;
  with_few_taps(static_cast<int>(p.kernel),
                [&](auto taps) { whole ? f(taps, std::true_type{}) : f(taps, std::false_type{}); });
}

template <class F>
void with_half_type(const char* name, DType dtype, F&& f) {
  dispatch_floating(name, dtype, [&]<class T>(std::type_identity<T> type) {
    if constexpr (sizeof(T) == 2) f(type);
  });
}

}  // namespace

bool goes_by_packs(const CausalConv1dProblem& p, DType dtype) {
  constexpr int64_t kSize = 8, kMostPacks = int64_t{1} << 31;
  return is_half(dtype) && p.kernel >= 2 && p.kernel <= 4 && p.dilation == 1 && p.length % kSize == 0 &&
         p.batch * p.channels * (p.length / kSize) < kMostPacks;
}

void packs_forward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands, const Tensor& y) {
  constexpr const char* kName = "causal_conv1d";
  with_half_type(kName, y.dtype(), [&]<class T>(std::type_identity<T>) {
    const DeviceScope scope(y.device());
    auto params = pack_params<T>(problem, operands, nullptr, y.data<T>());
    params.y = y.data<T>();
    const unsigned blocks = (params.packs + kPackThreads - 1) / kPackThreads;
    with_kernel(problem, params, [&]<int K, bool kWhole>(std::integral_constant<int, K>, std::bool_constant<kWhole>) {
      launch(kName, packs_forward_kernel<T, K, kWhole>, blocks, kPackThreads, 0, scope.stream(), params);
    });
  });
}

void packs_backward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                    const CausalConv1dResult& grads, const CausalConv1dTensors& into) {
  constexpr const char* kName = "causal_conv1d_backward";
  const Device device = operands.x.device();
  with_half_type(kName, operands.x.dtype(), [&]<class T>(std::type_identity<T>) {
    const DeviceScope scope(device);
    auto params = pack_params<T>(problem, operands, grads.y.data<T>(), data_or_null<T>(into.x));
    params.g_state = data_or_null<T>(grads.final_state);
    params.dx = data_or_null<T>(into.x);
    params.dstate = data_or_null<T>(into.state);
    // Blocks of a row have equal shares of it but for whole warps.
    const auto divide_up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    const int64_t packs = problem.length / kWide<T>, rows = problem.batch * problem.channels;
    const int64_t segments = divide_up(packs, kBackwardPacks * kPackThreads);
    const int64_t threads = divide_up(divide_up(packs, kBackwardPacks * segments), 32) * 32;
    params.by_segments = FastDivide(static_cast<uint32_t>(segments));
    params.splits = static_cast<int>(problem.batch * segments);
    const ParameterSums<T> sums(problem, into, params.splits, device);
    params.partials = sums.partials();
    with_kernel(problem, params, [&]<int K, bool kWhole>(std::integral_constant<int, K>, std::bool_constant<kWhole>) {
      launch(kName, packs_backward_kernel<T, K, kWhole>, static_cast<unsigned>(rows * segments),
             static_cast<unsigned>(threads), 0, scope.stream(), params);
    });
    sums.add(kName, scope.stream());
  });
}

}  // namespace halo::cuda::causal
