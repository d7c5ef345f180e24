// Causal depthwise convolution with a carried state. Long rows: causal_conv1d_packs.cu for two to four neighbouring
// taps in half types, causal_conv1d_tile.cuh for as many others, else causal_conv1d_wide.cuh. Short rows, such as the
// steps of decoding, and a reach of thousands of positions: a thread an element, sums over the taps in the same order,
// weight gradients as folds over batch and time (reduce/fold_runs.cuh).
#include <halo/core/copy.h>
#include <halo/ops/backend.h>
#include <halo/ops/causal_conv1d_backend.h>
#include <halo/ops/scalar_math.h>

#include <algorithm>

#include "../device/map.cuh"
#include "../reduce/fold_runs.cuh"
#include "../runtime/data.h"
#include "causal_conv1d_packs.h"
#include "causal_conv1d_wide.cuh"

namespace halo::cuda {
namespace {

/// The operands; v is the state followed by x.
template <class T>
struct Operands {
  int64_t channels, length, kernel, dilation, state_length;
  const T *x, *weight, *bias, *state;

  Operands(const CausalConv1dProblem& p, const CausalConv1dTensors& t)
      : channels(p.channels),
        length(p.length),
        kernel(p.kernel),
        dilation(p.dilation),
        state_length(p.state_length()),
        x(data_or_null<T>(t.x)),
        weight(data_or_null<T>(t.weight)),
        bias(data_or_null<T>(t.bias)),
        state(data_or_null<T>(t.state)) {}

  /// v at position p of row b * channels + c.
  __device__ T value(int64_t row, int64_t p) const {
    if (p >= state_length) return x[row * length + p - state_length];
    return state == nullptr ? T{} : state[row * state_length + p];
  }
  /// The sum before the activation, at time t.
  __device__ T sum(int64_t row, int64_t channel, int64_t t) const {
    T sum = bias == nullptr ? T(0) : bias[channel];
    for (int64_t k = 0; k < kernel; ++k) sum += weight[channel * kernel + k] * value(row, t + k * dilation);
    return sum;
  }
};

template <class T>
struct Forward {
  Operands<T> p;
  Divide length, channels;
  bool silu;
  __device__ T operator()(int64_t i) const {
    const int64_t t = length.split(i);
    int64_t batch = i;
    const int64_t channel = channels.split(batch);
    const T sum = p.sum(i, channel, t);
    return silu ? math::silu(sum) : sum;
  }
};

template <class T>
struct FinalState {
  Operands<T> p;
  Divide state_length;
  __device__ T operator()(int64_t i) const {
    const int64_t j = state_length.split(i);
    return p.value(i, p.length + j);
  }
};

/// The upstream gradient of the sum before the activation.
template <class T>
struct SumGradient {
  Operands<T> p;
  Divide length, channels;
  __device__ T operator()(int64_t i, T g) const {
    const int64_t t = length.split(i);
    int64_t batch = i;
    const int64_t channel = channels.split(batch);
    const T sum = p.sum(i, channel, t), s = math::sigmoid(sum);
    return g == T(0) ? T(0) : g * s * (T(1) + sum * (T(1) - s));
  }
};

/// The gradient of v at `from` + j, j counted along the tensor that is written: state (from 0) or x (after it).
template <class T>
struct ValueGradient {
  Operands<T> p;
  Divide extent, channels;
  int64_t from;
  const T *g, *g_state;  ///< of the sum, and of the final state; null: 0
  __device__ T operator()(int64_t i) const {
    const int64_t at = from + extent.split(i);
    int64_t batch = i;
    const int64_t channel = channels.split(batch);
    T sum = g_state != nullptr && at >= p.length ? g_state[i * p.state_length + at - p.length] : T(0);
    if (g == nullptr) return sum;
    for (int64_t k = 0; k < p.kernel; ++k) {
      const int64_t t = at - k * p.dilation;
      if (t >= 0 && t < p.length) sum += p.weight[channel * p.kernel + k] * g[i * p.length + t];
    }
    return sum;
  }
};

/// dw[c, k] = sum of g[b, c, t] v[b, c, t + k dilation] over b and t. Output o is tap o % K of a channel.
template <class T>
struct WeightGradient {
  struct Acc {
    double sum;
    int64_t ahead;  ///< from the position of g to that of v
  };
  const T* x;  ///< g
  Operands<T> p;
  Divide length;
  T* out;
  __device__ Acc start(int64_t o, int64_t) const { return {0, o % p.kernel * p.dilation}; }
  __device__ void add(Acc& acc, int64_t at, T g) const {
    int64_t row = at;
    const int64_t t = length.split(row);
    acc.sum += static_cast<double>(g) * static_cast<double>(p.value(row, t + acc.ahead));
  }
  __device__ Acc operator()(const Acc& a, const Acc& b) const { return {a.sum + b.sum, a.ahead}; }
  __device__ void write(int64_t o, const Acc& acc) const { out[o] = static_cast<T>(acc.sum); }
};

template <class T>
struct BiasGradient {
  using Acc = double;
  const T* x;  ///< g
  T* out;
  __device__ Acc start(int64_t, int64_t) const { return 0; }
  __device__ void add(Acc& acc, int64_t, T g) const { acc += static_cast<double>(g); }
  __device__ Acc operator()(Acc a, Acc b) const { return a + b; }
  __device__ void write(int64_t o, Acc acc) const { out[o] = static_cast<T>(acc); }
};

/// Gradients of weight and bias for g, the gradient of the sum.
template <class T>
void parameter_gradients(const CausalConv1dProblem& problem, const Operands<T>& p, Device device, const Tensor& g,
                         const CausalConv1dTensors& into) {
  const int64_t batch = problem.batch, channels = problem.channels, length = problem.length;
  const bool nothing = !g.defined() || g.numel() == 0;
  if (into.weight.defined() && into.weight.numel() > 0) {
    if (nothing) {
      halo::fill(into.weight, 0);
    } else {
      fold_runs("causal_conv1d_backward", device, {channels, problem.kernel, batch, length},
                {length, 0, channels * length, 1}, 2,
                WeightGradient<T>{g.data<T>(), p, Divide(length, g.numel()), into.weight.data<T>()});
    }
  }
  if (into.bias.defined() && into.bias.numel() > 0) {
    if (nothing) {
      halo::fill(into.bias, 0);
    } else {
      fold_runs("causal_conv1d_backward", device, {channels, batch, length}, {length, channels * length, 1}, 1,
                BiasGradient<T>{g.data<T>(), into.bias.data<T>()});
    }
  }
}

bool has_few_taps(int64_t kernel) { return kernel >= 2 && kernel <= 4; }

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Elements behind a tile that the last runs of causal_conv1d_wide.cuh read, whatever is there.
int64_t beyond_tile(const CausalConv1dProblem& p) { return p.kernel == 1 ? 0 : 2 * causal::kRun * p.dilation; }

/// Columns of a tile of that file for which the backward pass finds room in any GPU's shared memory.
int64_t wide_columns(const CausalConv1dProblem& p, int64_t accumulator_size) {
  const int64_t elements = (int64_t{96} << 10) / accumulator_size;
  return (elements - 3 * p.state_length() - 2 * beyond_tile(p) - 3 * p.kernel - 128) / 2;
}

/// Whether rows are long enough for blocks of their own, and their reach fits in shared memory.
bool is_tiled(const CausalConv1dProblem& p, DType dtype) {
  constexpr int64_t kShortest = 256, kLongestReach = 2048, kLeastColumns = 1024, kMostBlocks = int64_t{1} << 30;
  return p.length >= kShortest && p.length < kMostBlocks && p.state_length() <= kLongestReach &&
         (has_few_taps(p.kernel) || wide_columns(p, dtype == DType::Float64 ? 8 : 4) >= kLeastColumns) &&
         p.batch * p.channels * (p.length / causal::kTileThreads + 1) < kMostBlocks;
}

/// Operands, and rows divided into tiles. `reaches`: how often a tile of x has the reach of the taps.
template <class T>
causal::TileParams<T> tile_params(const CausalConv1dProblem& p, const CausalConv1dTensors& t, int64_t most_columns,
                                  int reaches) {
  causal::TileParams<T> tile{};
  tile.x = t.x.data<T>();
  tile.weight = t.weight.data<T>();
  tile.bias = data_or_null<T>(t.bias);
  tile.state = data_or_null<T>(t.state);
  tile.silu = p.silu;
  tile.channels = static_cast<int>(p.channels);
  tile.length = static_cast<int>(p.length);
  tile.kernel = static_cast<int>(p.kernel);
  tile.dilation = p.kernel == 1 ? 1 : static_cast<int>(p.dilation);
  tile.reach = static_cast<int>(p.state_length());
  // Tiles of equal size but for whole rounds of the threads.
  const bool few = has_few_taps(p.kernel);
  const int64_t round = few ? causal::kTileRound : 16;
  if (!few) {
    constexpr int64_t kSum = sizeof(device::Accumulator<T>), kOnce = causal::kRun * causal::kTileThreads;
    most_columns = std::min(wide_columns(p, kSum), kOnce * (reaches == 1 ? 8 / int64_t{sizeof(T)} : 16 / kSum));
  }
  tile.columns = static_cast<int>(divide_up(divide_up(p.length, divide_up(p.length, most_columns)), round) * round);
  const int64_t tiles = divide_up(p.length, tile.columns);
  tile.tiles = FastDivide(static_cast<uint32_t>(tiles));
  tile.by_channel = FastDivide(static_cast<uint32_t>(p.channels));
  tile.batch = static_cast<int>(p.batch);
  // Short rows: several samples a block, two of which have room in shared memory at once, as long as there are blocks
  // enough for every multiprocessor.
  constexpr int64_t kSumBytes = sizeof(device::Accumulator<T>), kShortRow = 8 << 10, kBlocks = 132 * 16;
  const bool is_short = few && tile.columns * kSumBytes <= kShortRow && tile.reach * kSumBytes <= kShortRow / 4;
  const int64_t chunks =
      is_short ? std::clamp(divide_up(kBlocks, p.channels * tiles), divide_up(p.batch, 8), p.batch) : p.batch;
  tile.turns = static_cast<int>(divide_up(p.batch, chunks));
  tile.splits = static_cast<int>(divide_up(p.batch, tile.turns) * tiles);
  tile.rows.width = tile.length;
  tile.rows.elements = p.batch * p.channels * p.length;
  tile.x_box = conv::row_box(tile.rows, 1, 1, 1, tile.columns + int64_t{reaches} * tile.reach, sizeof(T));
  tile.g_box = conv::row_box(tile.rows, 1, 1, 1, tile.columns + int64_t{tile.reach}, sizeof(T));
  tile.by_dilation = FastDivide(static_cast<uint32_t>(tile.dilation));
  const int beyond =
      few ? 0 : static_cast<int>(divide_up((beyond_tile(p) + 2 * causal::kRun) * int64_t{sizeof(T)}, 16) * 16);
  tile.x_bytes = tile.x_box.bytes + beyond;
  tile.g_bytes = tile.g_box.bytes + beyond;
  return tile;
}

template <class T>
void forward_tiled(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands, const Tensor& y) {
  const DeviceScope scope(y.device());
  causal::TileParams<T> tile = tile_params<T>(problem, operands, 32768 / sizeof(T), 1);
  tile.y = y.data<T>();
  const dim3 blocks(static_cast<unsigned>(int64_t{tile.splits} * tile.channels));
  const auto x_bytes = static_cast<std::size_t>(tile.x_bytes) * (tile.turns > 1 ? 2 : 1);
  if (!has_few_taps(tile.kernel)) {
    const std::size_t bytes = x_bytes + static_cast<std::size_t>(tile.kernel) * sizeof(device::Accumulator<T>) +
                              static_cast<std::size_t>(tile.columns) * sizeof(T);
    return launch("causal_conv1d", causal::wide_forward_kernel<T>, blocks, causal::kTileThreads, bytes, scope.stream(),
                  tile);
  }
  causal::with_few_taps(tile.kernel, [&]<int K>(std::integral_constant<int, K>) {
    launch("causal_conv1d", causal::forward_kernel<T, K>, blocks, causal::kTileThreads, x_bytes, scope.stream(), tile);
  });
}

template <class T>
void backward_tiled(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                    const CausalConv1dResult& grads, const CausalConv1dTensors& into) {
  const Device device = operands.x.device();
  const DeviceScope scope(device);
  causal::TileParams<T> tile = tile_params<T>(problem, operands, 16384 / sizeof(device::Accumulator<T>), 2);
  tile.g = data_or_null<T>(grads.y);
  tile.g_state = data_or_null<T>(grads.final_state);
  tile.dx = data_or_null<T>(into.x);
  tile.dstate = data_or_null<T>(into.state);
  if (sizeof(T) < sizeof(float)) tile.up_bytes = static_cast<int>(divide_up(tile.g_bytes, 16) * 32);
  const causal::ParameterSums<T> sums(problem, into, tile.splits, device);
  tile.partials = sums.partials();
  const dim3 blocks(static_cast<unsigned>(int64_t{tile.splits} * tile.channels));
  const auto boxes = static_cast<std::size_t>(tile.x_bytes + tile.g_bytes + tile.up_bytes) * (tile.turns > 1 ? 2 : 1);
  if (has_few_taps(tile.kernel)) {
    causal::with_few_taps(tile.kernel, [&]<int K>(std::integral_constant<int, K>) {
      launch("causal_conv1d_backward", causal::backward_kernel<T, K>, blocks, causal::kTileThreads, boxes,
             scope.stream(), tile);
    });
  } else {
    const int sums_and_taps = tile.kernel + (tile.kernel / causal::kRun + causal::kTileWarps) * causal::kUnitSums;
    const std::size_t bytes = boxes + static_cast<std::size_t>(sums_and_taps) * sizeof(device::Accumulator<T>);
    launch("causal_conv1d_backward", causal::wide_backward_kernel<T>, blocks, causal::kTileThreads, bytes,
           scope.stream(), tile);
  }
  sums.add("causal_conv1d_backward", scope.stream());
}

}  // namespace

void causal_conv1d_forward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                           const CausalConv1dResult& result) {
  const int64_t numel = problem.batch * problem.channels * problem.length;
  const bool tiled = numel > 0 && is_tiled(problem, operands.x.dtype());
  if (is_half(operands.x.dtype()) && !tiled) {
    auto results = ops::writes(result);
    return ops::run_widened(causal_conv1d_forward, problem, operands, results);
  }
  dispatch_floating("causal_conv1d", operands.x.dtype(), [&]<class T>(std::type_identity<T>) {
    const Operands<T> p(problem, operands);
    if (tiled && causal::goes_by_packs(problem, operands.x.dtype())) {
      causal::packs_forward(problem, operands, result.y);
    } else if (tiled) {
      forward_tiled<T>(problem, operands, result.y);
    } else if constexpr (sizeof(T) >= sizeof(float)) {
      generate<true>("causal_conv1d",
                     Forward<T>{p, Divide(problem.length, numel), Divide(problem.channels, numel), problem.silu},
                     Elements<T>{result.y});
    }
    if (!result.final_state.defined()) return;
    generate<true>("causal_conv1d", FinalState<T>{p, Divide(p.state_length, result.final_state.numel())},
                   Elements<T>{result.final_state});
  });
}

void causal_conv1d_backward(const CausalConv1dProblem& problem, const CausalConv1dTensors& operands,
                            const CausalConv1dResult& grads, const CausalConv1dTensors& into) {
  const int64_t numel = problem.batch * problem.channels * problem.length;
  const bool tiled = numel > 0 && is_tiled(problem, operands.x.dtype());
  if (is_half(operands.x.dtype())) {
    auto results = ops::writes(into);
    if (!tiled) return ops::run_widened(causal_conv1d_backward, problem, operands, grads, results);
    if (grads.y.defined() && causal::goes_by_packs(problem, operands.x.dtype())) {
      return causal::packs_backward(problem, operands, grads, into);
    }
    return dispatch_floating("causal_conv1d_backward", operands.x.dtype(), [&]<class T>(std::type_identity<T>) {
      if constexpr (sizeof(T) < sizeof(float)) backward_tiled<T>(problem, operands, grads, into);
    });
  }
  dispatch_float("causal_conv1d_backward", operands.x.dtype(), [&]<class T>(std::type_identity<T>) {
    if (tiled) return backward_tiled<T>(problem, operands, grads, into);
    const Operands<T> p(problem, operands);
    const Divide length(problem.length, numel), channels(problem.channels, numel);
    Tensor g = grads.y;
    if (g.defined() && problem.silu) {
      g = empty_like(grads.y);
      generate<true>("causal_conv1d_backward", SumGradient<T>{p, length, channels}, Elements<T>{g},
                     Elements<T>{grads.y});
    }
    const T *const up = data_or_null<T>(g), *const up_state = data_or_null<T>(grads.final_state);
    const auto values = [&](const Tensor& out, int64_t extent, int64_t from) {
      if (!out.defined()) return;
      const Divide by_channel(problem.channels, out.numel());
      generate<true>("causal_conv1d_backward",
                     ValueGradient<T>{p, Divide(extent, out.numel()), by_channel, from, up, up_state},
                     Elements<T>{out});
    };
    values(into.x, p.length, p.state_length);
    values(into.state, p.state_length, 0);
    parameter_gradients<T>(problem, p, operands.x.device(), g, into);
  });
}

}  // namespace halo::cuda
