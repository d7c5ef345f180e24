// Causal depthwise convolution with two to four neighbouring taps in half types, straight from memory: a thread has a
// pack of 16 bytes and the elements before it in registers, so that there is a load for eight elements where
// causal_conv1d_tile.cuh has one a tap and element. Operands may begin anywhere: then a thread shifts what it needs out
// of the granules around. Either way the roundings are the same, which is why no product and sum is left to the
// compiler to join. Packs are those of all elements: where rows are not whole packs, some belong to two rows, a thread
// for each.
#include "../device/async_copy.cuh"
#include "../runtime/data.h"
#include "../runtime/device.h"
#include "causal_conv1d_pack.cuh"
#include "causal_conv1d_packs.h"

namespace halo::cuda::causal {
namespace {

constexpr int kPackThreads = 256;
/// Of the backward pass: a warp more where packs of a row may be one more than its elements are.
template <bool kRows>
constexpr int kMostThreads = kRows ? 256 : 288;
constexpr int kBackwardPacks = 2;  ///< of a thread of the backward pass, a block of threads apart

template <class T, int K, bool kShifted, bool kRows>
__global__ void __launch_bounds__(kPackThreads) packs_forward_kernel(const __grid_constant__ PackParams<T> p) {
  using Row = PackRow<T, K, kShifted, kRows>;
  const uint32_t thread = blockIdx.x * kPackThreads + threadIdx.x;
  if (thread >= p.threads) return;
  uint32_t column;
  const uint32_t row = p.by_packs.divide(thread, column);
  const PackPlaces<kRows> places(p, row);
  const int position = places.position(column);
  if (column > places.last) return;
  typename Row::Window loaded;
  loaded.load(p.x, p.x_shift, places.first + column, p.elements);
  const Row own(p, row);
  float window[kBefore + kSize];
  own.unpack(p, loaded, position, window);
  Pack<float, kSize> sums;
#pragma unroll
  for (int j = 0; j < kSize; ++j) sums.at[j] = own.sum(window, j);
  if (p.silu) apply_silu<T>(sums.at);
  Row::store(p, p.y, places.first + column, position, sums);
}

__device__ __forceinline__ float sum_of(const float (&values)[kSize]) {
  float sum = values[0];
#pragma unroll
  for (int j = 1; j < kSize; ++j) sum += values[j];
  return sum;
}

/// A block has packs threadIdx.x, threadIdx.x + blockDim.x, ... of its part of a row. The gradients of sums after a
/// thread's pack come from its neighbour: by a shuffle, between warps through shared memory.
template <class T, int K, bool kShifted, bool kRows>
__global__ void __launch_bounds__(kMostThreads<kRows>, kShifted || !kRows ? 3 : 4)
    packs_backward_kernel(const __grid_constant__ PackParams<T> p) {
  using Row = PackRow<T, K, kShifted, kRows>;
  constexpr int kReach = Row::kReach, kMostWarps = kMostThreads<kRows> / 32, kEach = kBackwardPacks;
  __shared__ float edges[kEach * kMostWarps + 1][kReach];  ///< first gradients of each warp's packs, and what follows
  __shared__ float scratch[K + 1][kMostThreads<kRows>];
  const uint32_t thread = threadIdx.x, threads = blockDim.x, lane = thread % 32, warp = thread / 32;
  uint32_t segment;
  const uint32_t row = p.by_segments.divide(blockIdx.x, segment);
  const PackPlaces<kRows> places(p, row);
  const uint32_t first = segment * threads * kEach + thread, behind = (segment + 1) * threads * kEach;
  const auto column_of = [&](int i) { return first + static_cast<uint32_t>(i) * threads; };
  typename Row::Window loaded[kEach];
  typename Row::Gradients up[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t pack = places.first + min(column_of(i), places.last);
    loaded[i].load(p.x, p.x_shift, pack, p.elements);
    up[i].load(p.g, p.g_shift, pack, p.elements);
  }
  const Row own(p, row);

  float of_sums[kEach][kSize], of_taps[K] = {}, of_bias = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    float window[kBefore + kSize], g[kSize];
    own.unpack(p, loaded[i], places.position(column_of(i)), window);
    own.unpack(p, up[i], places.position(column_of(i)), g);
    float slopes[kSize] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (p.silu) {  // all at once, whose latencies then overlap
#pragma unroll
      for (int j = 0; j < kSize; ++j) slopes[j] = own.sum(window, j);
      to_slopes<T>(slopes);
    }
    const bool exists = column_of(i) <= places.last;
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
      const int at = places.position(column_of(i)) + j;
      if (!exists || (!kRows && (at < 0 || at >= p.length))) continue;  // zeros there are no part of sums
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
    if (const int position = places.position(behind) + static_cast<int>(thread); position < p.length) {
      const int64_t at = int64_t{row} * p.length + position;
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
    const int position = places.position(column);
    float gradients[kSize + kReach];
#pragma unroll
    for (int j = 0; j < kSize; ++j) gradients[j] = of_sums[i][j];
#pragma unroll
    for (int j = 0; j < kReach; ++j) {
      const float next = __shfl_down_sync(0xffffffffu, of_sums[i][j], 1);
      gradients[kSize + j] = lane < 31 ? next : edges[i * (threads / 32) + warp + 1][j];
    }
    Pack<float, kSize> of_x{};
    if (p.g_state != nullptr && position + kSize + kReach > p.length) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const int in_state = position + j + kReach - p.length;  // where the final state has it
        if (in_state >= 0 && in_state < kReach) of_x.at[j] = to_accumulator(p.g_state[own.state + in_state]);
      }
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
#pragma unroll
      for (int k = 0; k < K; ++k) of_x.at[j] = fmaf(own.taps[k], gradients[j + kReach - k], of_x.at[j]);
    }
    if (p.dx != nullptr && column <= places.last) Row::store(p, p.dx, places.first + column, position, of_x);
    if (p.dstate != nullptr && column == 0) {
      float of_state[kReach] = {};
#pragma unroll
      for (int m = 0; m < kSize + kReach; ++m) {  // the gradient of the sum at m - lead
#pragma unroll
        for (int k = 0; k < kReach; ++k) {
#pragma unroll
          for (int j = k; j < kReach; ++j) {
            if (m - places.lead == j - k) of_state[j] = fmaf(own.taps[k], gradients[m], of_state[j]);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < kReach; ++j) p.dstate[own.state + j] = from_accumulator<T>(of_state[j]);
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

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Packs that have a part of a row, at most.
int64_t packs_of(const CausalConv1dProblem& p) {
  return p.length % kSize == 0 ? p.length / kSize : divide_up(p.length + kSize - 1, kSize);
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
  params.length = static_cast<int>(p.length);
  params.elements = p.batch * p.channels * p.length;
  params.threads = static_cast<uint32_t>(p.batch * p.channels * packs_of(p));
  params.by_packs = FastDivide(static_cast<uint32_t>(packs_of(p)));
  params.by_channel = FastDivide(static_cast<uint32_t>(p.channels));
  return params;
}

/// Calls f with the number of taps, whether something is to be shifted, and whether rows are whole packs.
template <class T, class F>
void with_kernel(const CausalConv1dProblem& p, const PackParams<T>& params, F&& f) {
  const bool shifted = params.x_shift != 0 || params.g_shift != 0 || !params.granules;
  const bool rows = p.length % kSize == 0;
  const auto with_rows = [&](auto taps, auto is_shifted) {
    rows ? f(taps, is_shifted, std::true_type{}) : f(taps, is_shifted, std::false_type{});
  };
  with_few_taps(static_cast<int>(p.kernel),
                [&](auto taps) { shifted ? with_rows(taps, std::true_type{}) : with_rows(taps, std::false_type{}); });
}

template <class F>
void with_half_type(const char* name, DType dtype, F&& f) {
  dispatch_floating(name, dtype, [&]<class T>(std::type_identity<T> type) {
    if constexpr (sizeof(T) == 2) f(type);
  });
}

}  // namespace

bool goes_by_packs(const CausalConv1dProblem& p, DType dtype) {
  return is_half(dtype) && p.kernel >= 2 && p.kernel <= 4 && p.dilation == 1 && p.length >= 4 * kSize &&
         p.length < INT32_MAX / 2 && p.batch * p.channels * packs_of(p) < INT32_MAX;
}

void packs_forward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands, const Tensor& y) {
  constexpr const char* kName = "causal_conv1d";
  with_half_type(kName, y.dtype(), [&]<class T>(std::type_identity<T>) {
    const DeviceScope scope(y.device());
    auto params = pack_params<T>(problem, operands, nullptr, y.data<T>());
    params.y = y.data<T>();
    const auto blocks = static_cast<unsigned>(divide_up(params.threads, kPackThreads));
    with_kernel(problem, params,
                [&]<int K, bool kShifted, bool kRows>(std::integral_constant<int, K>, std::bool_constant<kShifted>,
                                                      std::bool_constant<kRows>) {
                  launch(kName, packs_forward_kernel<T, K, kShifted, kRows>, blocks, kPackThreads, 0, scope.stream(),
                         params);
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
    const int64_t packs = packs_of(problem), rows = problem.batch * problem.channels;
    const int most = problem.length % kSize == 0 ? kMostThreads<true> : kMostThreads<false>;
    const int64_t segments = divide_up(packs, kBackwardPacks * most);
    const int64_t threads = divide_up(divide_up(packs, kBackwardPacks * segments), 32) * 32;
    params.by_segments = FastDivide(static_cast<uint32_t>(segments));
    params.splits = static_cast<int>(problem.batch * segments);
    const ParameterSums<T> sums(problem, into, params.splits, device);
    params.partials = sums.partials();
    with_kernel(problem, params,
                [&]<int K, bool kShifted, bool kRows>(std::integral_constant<int, K>, std::bool_constant<kShifted>,
                                                      std::bool_constant<kRows>) {
                  launch(kName, packs_backward_kernel<T, K, kShifted, kRows>, static_cast<unsigned>(rows * segments),
                         static_cast<unsigned>(threads), 0, scope.stream(), params);
                });
    sums.add(kName, scope.stream());
  });
}

}  // namespace halo::cuda::causal
