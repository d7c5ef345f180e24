// Normalisation, backward: rows that a team of threads holds (rows.h), rows of planes by the copy engine
// (plane_ring.h), else sums over the statistics' values and over the channels, then the gradient of x.
#include <halo/core/copy.h>
#include <halo/ops/norm_backend.h>

#include "../reduce/fold_runs.cuh"
#include "gradient_sums.cuh"
#include "planes.cuh"
#include "ring_norms.cuh"
#include "rows.h"

namespace halo::cuda {
namespace {

using device::Accumulator;
using device::from_accumulator;
using device::to_accumulator;

/// The sums of each output, a channel (batch norm) or a plane.
template <class T>
struct TakeSums {
  using Value = Accumulator<T>;
  struct Acc {
    Value mean;
    GradientSums sums;
  };
  const T *x, *y;  ///< y: the gradient
  NormPlanes planes;
  const Value* mean;
  GradientSums* out;
  __device__ Acc start(int64_t o, int64_t) const { return {mean[planes.statistic(o)], {0, 0, 0}}; }
  __device__ void add(Acc& acc, int64_t, T x_value, T gradient) const {
    const Value difference = to_accumulator(x_value) - acc.mean;
    const double g = static_cast<double>(to_accumulator(gradient)), d = static_cast<double>(difference);
    acc.sums = acc.sums + GradientSums{g, g * d, d};
  }
  /// A few in float32, which for so few is as good as the products.
  __device__ void add_pack(Acc& acc, const Pack<T, kWide<T>>& xs, const Pack<T, kWide<T>>& gs) const
      requires(sizeof(T) < 8) {
    acc.sums = acc.sums + GradientSums::of_pack(acc.mean, xs, gs);
  }
  __device__ Acc operator()(const Acc& a, const Acc& b) const { return {a.mean, a.sums + b.sums}; }
  __device__ void write(int64_t o, const Acc& acc) const { out[o] = acc.sums; }
};

/// The sums of each row with h = g weight for g, where planes are too short to be outputs of their own.
template <class T>
struct TakeRowSums {
  using Value = Accumulator<T>;
  using Acc = typename TakeSums<T>::Acc;
  const T *x, *y;
  NormPlanes planes;
  const T* weight;
  const Value* mean;
  GradientSums* out;
  __device__ Acc start(int64_t o, int64_t) const { return {mean[o], {0, 0, 0}}; }
  __device__ void add(Acc& acc, int64_t at, T x_value, T gradient) const {
    const double d = static_cast<double>(to_accumulator(x_value) - acc.mean);
    double h = static_cast<double>(to_accumulator(gradient));
    if (weight != nullptr)
      h *= static_cast<double>(to_accumulator(weight[planes.channel(planes.positions.quotient(at))]));
    acc.sums = acc.sums + GradientSums{h, h * d, d};
  }
  __device__ Acc operator()(const Acc& a, const Acc& b) const { return {a.mean, a.sums + b.sums}; }
  __device__ void write(int64_t o, const Acc& acc) const { out[o] = acc.sums; }
};

/// Slopes from the sums of the planes of a statistic, each times its channel's weight.
template <class T>
struct CombinePlanes {
  using Value = Accumulator<T>;
  NormPlanes planes;
  int64_t planes_each;  ///< 1 where the sums are those of the statistic already (batch norm)
  double count;
  bool fixed;  ///< statistics do not depend on x
  const GradientSums* sums;
  const Value *mean, *rstd;
  const T* weight;
  __device__ Slopes<Wide<T>> operator()(int64_t s) const {
    GradientSums total{0, 0, 0};
    for (int64_t j = 0; j < planes_each; ++j) {
      const int64_t q = s * planes_each + j;
      const double w =
          weight == nullptr || planes.by_channel ? 1 : static_cast<double>(to_accumulator(weight[planes.channel(q)]));
      total = total + GradientSums{w * sums[q].plain, w * sums[q].scaled, sums[q].difference};
    }
    if (fixed) return {static_cast<Wide<T>>(mean[s]), 0, static_cast<Wide<T>>(rstd[s]), 0, 0};
    return slopes_of<T>(total, 1 / count, mean[s], rstd[s]);
  }
};

/// The gradients of weight and bias: sums over the planes of a channel.
template <class T>
struct ChannelGradients {
  using Value = Accumulator<T>;
  NormPlanes planes;
  int64_t planes_each, stride;  ///< the planes that belong to channel c: c + j * stride
  int pieces;                   ///< of a plane, each with its sums
  const GradientSums* sums;
  const Slopes<Wide<T>>* slopes;
  T *weight, *bias;  ///< null: not wanted
  struct Sums {
    double plain, scaled;
    __device__ friend Sums operator+(const Sums& a, const Sums& b) { return {a.plain + b.plain, a.scaled + b.scaled}; }
  };
  __device__ int64_t count() const { return planes_each * pieces; }
  /// What one of a channel's threads adds up.
  __device__ Sums sum(int64_t c, int rank, int threads) const {
    Sums total{0, 0};
#pragma unroll 2
    for (int64_t j = rank; j < count(); j += threads) {
      const int64_t q = c + j / pieces * stride;
      const Slopes<Wide<T>> s = slopes[planes.statistic(q)];
      const GradientSums& more = sums[q * pieces + j % pieces];
      total.plain += more.plain;
      total.scaled += (more.scaled - static_cast<double>(s.rest) * more.plain) * static_cast<double>(s.rstd);
    }
    return total;
  }
  __device__ void write(int64_t c, const Sums& total) const {
    if (bias != nullptr) bias[c] = from_accumulator<T>(static_cast<Value>(total.plain));
    if (weight != nullptr) weight[c] = from_accumulator<T>(static_cast<Value>(total.scaled));
  }
};

/// `threads` threads a channel, a power of two.
template <class F>
__global__ void __launch_bounds__(kMapThreads) channel_kernel(int64_t count, int threads, const __grid_constant__ F f) {
  using Sums = typename F::Sums;
  __shared__ Sums shared[kMapThreads / Teams::kWarp];
  const int64_t c = (int64_t{blockIdx.x} * kMapThreads + threadIdx.x) / threads;
  const int rank = static_cast<int>(threadIdx.x) % threads;
  Sums total{0, 0};
  if (c < count) total = f.sum(c, rank, threads);
  total = combine_neighbours(threads, total, shared, functor::Add{});
  if (c < count && rank == 0) f.write(c, total);
}

/// The same from g and x, where planes are too short.
template <class T>
struct TakeChannelGradients {
  using Value = Accumulator<T>;
  struct Acc {
    double plain, scaled;
  };
  const T *x, *y;
  NormPlanes planes;
  const Slopes<Wide<T>>* slopes;
  T *weight, *bias;  ///< null: not wanted
  __device__ Acc start(int64_t, int64_t) const { return {0, 0}; }
  __device__ void add(Acc& acc, int64_t at, T x_value, T gradient) const {
    const Slopes<Wide<T>> s = slopes[planes.statistic(planes.positions.quotient(at))];
    const double g = static_cast<double>(to_accumulator(gradient));
    acc.plain += g;
    const auto wide = static_cast<Wide<T>>(to_accumulator(x_value));
    acc.scaled += g * static_cast<double>((wide - s.mean - s.rest) * s.rstd);
  }
  __device__ Acc operator()(const Acc& a, const Acc& b) const { return {a.plain + b.plain, a.scaled + b.scaled}; }
  __device__ void write(int64_t o, const Acc& acc) const {
    if (bias != nullptr) bias[o] = from_accumulator<T>(static_cast<Value>(acc.plain));
    if (weight != nullptr) weight[o] = from_accumulator<T>(static_cast<Value>(acc.scaled));
  }
};

template <class T>
struct InputGradient {
  using Value = Accumulator<T>;
  using Plane = PlaneGradient<Value, Wide<T>>;
  NormPlanes planes;
  const Slopes<Wide<T>>* slopes;
  const T* weight;
  __device__ Plane plane(int64_t q) const {
    const int64_t c = planes.channel(q);
    const auto w = static_cast<Wide<T>>(weight == nullptr ? Value(1) : to_accumulator(weight[c]));
    Slopes<Wide<T>> s = slopes[planes.by_channel ? c : planes.statistic(q)];
    if (planes.by_channel) {  // the sums are of g
      s.plain *= w;
      s.scaled *= w;
    }
    return {s, w};
  }
};

/// Sums and slopes on the device, and the kernels that follow the sums.
template <class T>
struct Backward {
  using Value = Accumulator<T>;
  const char* name;
  NormPlanes planes;
  int64_t sums_count, statistics;
  const Tensor &g, &x, &weight, &mean, &rstd;
  const NormGrads& grads;
  Storage sums_storage{static_cast<std::size_t>(sums_count) * sizeof(GradientSums), x.device()};
  Storage slopes_storage{static_cast<std::size_t>(statistics) * sizeof(Slopes<Wide<T>>), x.device()};
  GradientSums* sums = static_cast<GradientSums*>(sums_storage.data());
  Slopes<Wide<T>>* slopes = static_cast<Slopes<Wide<T>>*>(slopes_storage.data());

  bool wants_parameters() const { return grads.weight.defined() || grads.bias.defined(); }
  /// `weight` where the sums lack it.
  void take_slopes(double count, bool fixed, const T* missing_weight) const {
    const DeviceScope scope(x.device());
    const CombinePlanes<T> f{
        planes, sums_count / statistics, count, fixed, sums, mean.data<Value>(), rstd.data<Value>(), missing_weight};
    launch(name, each_kernel<CombinePlanes<T>, Slopes<Wide<T>>>, map_blocks(statistics), kMapThreads, 0, scope.stream(),
           statistics, f, slopes);
  }
  /// `pieces`: those of a plane that have sums of their own.
  void write_parameters(int64_t channels, int pieces = 1) const {
    if (!wants_parameters()) return;
    const DeviceScope scope(x.device());
    const ChannelGradients<T> f{planes,
                                sums_count / channels / pieces,
                                channels,
                                pieces,
                                sums,
                                slopes,
                                data_or_null<T>(grads.weight),
                                data_or_null<T>(grads.bias)};
    const auto needed = std::bit_ceil(static_cast<uint64_t>(f.planes_each * pieces));
    const auto threads = static_cast<int>(std::clamp<uint64_t>(needed, Teams::kWarp, kMapThreads));
    launch(name, channel_kernel<ChannelGradients<T>>, map_blocks(channels * threads), kMapThreads, 0, scope.stream(),
           channels, threads, f);
  }
  /// All but the gradients of weight and bias, x and g read once.
  void by_ring(const RingPlan& plan) const {
    const DeviceScope scope(x.device());
    ring_backward<T>(name, plan,
                     {.x = x.data<T>(),
                      .g = g.data<T>(),
                      .weight = data_or_null<T>(weight),
                      .mean = mean.data<Value>(),
                      .rstd = rstd.data<Value>(),
                      .dx = data_or_null<T>(grads.x),
                      .sums = sums,
                      .slopes = slopes},
                     scope.stream());
  }
  void write_input() const {
    if (!grads.x.defined()) return;
    map_planes(name, x.device(), x.numel(), planes.positions, InputGradient<T>{planes, slopes, data_or_null<T>(weight)},
               grads.x.data<T>(), static_cast<const T*>(g.data<T>()), static_cast<const T*>(x.data<T>()));
  }
};

void fill_defined(const Tensor& t, double value) {
  if (t.defined()) halo::fill(t, value);
}

}  // namespace

void batch_norm_backward(const BatchNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                         const Tensor& mean, const Tensor& rstd, const NormGrads& grads) {
  constexpr const char* kName = "batch_norm_backward";
  if (x.numel() == 0) {
    fill_defined(grads.weight, 0);
    return fill_defined(grads.bias, 0);
  }
  dispatch_floating(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const int64_t channels = problem.channels;
    const Backward<T> backward{kName, NormPlanes(problem), channels, channels, g, x, weight, mean, rstd, grads};
    fold_runs(kName, x.device(), {channels, problem.batch, problem.positions},
              {problem.positions, channels * problem.positions, 1}, 1,
              TakeSums<T>{x.data<T>(), g.data<T>(), backward.planes, mean.data<Accumulator<T>>(), backward.sums});
    backward.take_slopes(static_cast<double>(problem.count()), !problem.training, nullptr);
    backward.write_parameters(channels);
    backward.write_input();
  });
}

void row_norm_backward(const RowNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                       const Tensor& mean, const Tensor& rstd, const NormGrads& grads) {
  constexpr const char* kName = "row_norm_backward";
  if (x.numel() == 0) {
    fill_defined(grads.weight, 0);
    return fill_defined(grads.bias, 0);
  }
  constexpr int64_t kShortPlane = 16;
  const int64_t rows = problem.rows, positions = problem.positions, planes = rows * problem.channels_per_row;
  const auto count = static_cast<double>(problem.length());
  dispatch_floating(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const T *const in = x.data<T>(), *const up = g.data<T>(), *const w = data_or_null<T>(weight);
    const auto* const means = mean.data<Accumulator<T>>();
    if (is_held_row(problem, x.dtype())) {
      const RowBackward<T> args{.rows = rows,
                                .length = problem.length(),
                                .x = in,
                                .mean = means,
                                .rstd = rstd.data<Accumulator<T>>(),
                                .weight = w,
                                .g_y = up,
                                .x_grad = data_or_null<T>(grads.x),
                                .weight_grad = data_or_null<T>(grads.weight),
                                .bias_grad = data_or_null<T>(grads.bias)};
      const Tensor workspace = empty({rows_backward_workspace(args)}, mean.options());
      const DeviceScope scope(x.device());
      return rows_backward<T>(kName, args, workspace.data<Accumulator<T>>(), scope.stream());
    }
    if (positions >= kShortPlane) {
      const auto plan =
          RingPlan::of<T>(problem, RingBackward<T>::kOperands, RingBackward<T>::kSums, device_traits(x.device().index));
      const int pieces = plan ? plan->each : 1;
      const Backward<T> backward{kName, NormPlanes(problem), planes * pieces, rows, g, x, weight, mean, rstd, grads};
      if (plan) {
        backward.by_ring(*plan);
        return backward.write_parameters(problem.channels(), pieces);
      }
      fold_runs(kName, x.device(), {planes, positions}, {positions, 1}, 1,
                TakeSums<T>{in, up, backward.planes, means, backward.sums});
      backward.take_slopes(count, false, w);
      backward.write_parameters(problem.channels());
      return backward.write_input();
    }
    const Backward<T> backward{kName, NormPlanes(problem), rows, rows, g, x, weight, mean, rstd, grads};
    fold_runs(kName, x.device(), {rows, problem.length()}, {problem.length(), 1}, 1,
              TakeRowSums<T>{in, up, backward.planes, w, means, backward.sums});
    backward.take_slopes(count, false, nullptr);
    if (backward.wants_parameters()) {
      const int64_t channels = problem.channels();
      fold_runs(kName, x.device(), {channels, rows / problem.groups, positions}, {positions, channels * positions, 1},
                1,
                TakeChannelGradients<T>{in, up, backward.planes, backward.slopes, data_or_null<T>(grads.weight),
                                        data_or_null<T>(grads.bias)});
    }
    backward.write_input();
  });
}

}  // namespace halo::cuda
