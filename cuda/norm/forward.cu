// Normalisation, forward: rows that a team of threads holds (rows.h), rows of planes by the copy engine (plane_ring.h),
// else statistics in one pass (reduce/moments.cuh), then y = (x - mean) rstd weight + bias.
#include <halo/core/copy.h>
#include <halo/ops/norm_backend.h>

#include "../reduce/fold_runs.cuh"
#include "../reduce/moments.cuh"
#include "planes.cuh"
#include "ring_norms.cuh"
#include "rows.h"

namespace halo::cuda {
namespace {

using device::Accumulator;
using device::to_accumulator;

/// A mean in two parts, so that differences to it are as good as in twice the digits.
template <class Value>
struct Statistic {
  Value mean, rest, rstd;
  __device__ Statistic(double exact_mean, double exact_rstd)
      : mean(static_cast<Value>(exact_mean)),
        rest(static_cast<Value>(exact_mean - static_cast<double>(mean))),
        rstd(static_cast<Value>(exact_rstd)) {}
  Statistic() = default;
};

/// The statistics of each output, also as kept for backward, and the running ones where they are given.
template <class T>
struct TakeStatistics {
  using Acc = Moments;
  using Value = Accumulator<T>;
  const T* x;
  Statistic<Value>* statistics;
  Value *mean, *rstd;
  double count, eps;
  T *running_mean = nullptr, *running_var = nullptr;
  double momentum = 0;
  __device__ Acc start(int64_t, int64_t at) const {
    return Moments::around(static_cast<double>(to_accumulator(x[at])));
  }
  __device__ void add(Acc& acc, int64_t, T value) const { acc.add(static_cast<double>(to_accumulator(value))); }
  template <int N>
  __device__ void add_packs(Acc& acc, int count, const Pack<T, kWide<T>> (&packs)[N]) const requires(sizeof(T) < 8) {
    acc.add_packs(count, packs);
  }
  __device__ Acc operator()(const Acc& a, const Acc& b) const { return Moments::combine(a, b); }
  __device__ void write(int64_t o, const Acc& acc) const {
    const Statistic<Value> s{acc.mean(count), 1 / sqrt(acc.deviation(count) / count + eps)};
    statistics[o] = s;
    mean[o] = s.mean;
    rstd[o] = s.rstd;
    if (running_mean != nullptr) running_mean[o] = blend(running_mean[o], acc.mean(count));
    if (running_var != nullptr) running_var[o] = blend(running_var[o], acc.deviation(count) / (count - 1));
  }
  __device__ T blend(T old, double now) const {
    const double blended = (1 - momentum) * static_cast<double>(to_accumulator(old)) + momentum * now;
    return device::from_accumulator<T>(static_cast<Value>(blended));
  }
};

/// What evaluation uses: the running statistics.
template <class T>
struct RunningStatistics {
  using Value = Accumulator<T>;
  const T *running_mean, *running_var;
  Value *mean, *rstd;
  double eps;
  __device__ Statistic<Value> operator()(int64_t c) const {
    const Statistic<Value> s(static_cast<double>(to_accumulator(running_mean[c])),
                             1 / sqrt(static_cast<double>(to_accumulator(running_var[c])) + eps));
    mean[c] = s.mean;
    rstd[c] = s.rstd;
    return s;
  }
};

template <class T>
struct Normalise {
  using Value = Accumulator<T>;
  NormPlanes planes;
  const Statistic<Value>* statistics;
  const T *weight, *bias;
  struct Plane {
    Value mean, rest, scale, shift;
    __device__ Value operator()(Value x) const { return (x - mean - rest) * scale + shift; }
  };
  __device__ Plane plane(int64_t q) const {
    const Statistic<Value> s = statistics[planes.statistic(q)];
    const int64_t c = planes.channel(q);
    return {s.mean, s.rest, weight == nullptr ? s.rstd : s.rstd * to_accumulator(weight[c]),
            bias == nullptr ? Value(0) : to_accumulator(bias[c])};
  }
};

/// Device memory for `count` statistics.
template <class T>
struct Statistics {
  Storage storage;
  Statistic<Accumulator<T>>* data;
  Statistics(int64_t count, Device device)
      : storage(static_cast<std::size_t>(count) * sizeof(*data), device),
        data(static_cast<Statistic<Accumulator<T>>*>(storage.data())) {}
};

template <class T>
void normalise(const char* name, const NormPlanes& planes, const Statistics<T>& statistics, const Tensor& x,
               const Tensor& weight, const Tensor& bias, const Tensor& y) {
  map_planes(name, x.device(), x.numel(), planes.positions,
             Normalise<T>{planes, statistics.data, data_or_null<T>(weight), data_or_null<T>(bias)}, y.data<T>(),
             static_cast<const T*>(x.data<T>()));
}

template <class T>
void batch_statistics(const BatchNormProblem& p, const Statistics<T>& statistics, const Tensor& x,
                      const Tensor& running_mean, const Tensor& running_var, const NormResult& result) {
  using Value = Accumulator<T>;
  if (p.channels == 0) return;
  if (p.count() == 0) {
    halo::fill(result.mean, 0);
    halo::fill(result.rstd, 0);
    return;
  }
  const TakeStatistics<T> f{x.data<T>(),
                            statistics.data,
                            result.mean.data<Value>(),
                            result.rstd.data<Value>(),
                            static_cast<double>(p.count()),
                            p.eps,
                            data_or_null<T>(running_mean),
                            data_or_null<T>(running_var),
                            p.momentum};
  fold_runs("batch_norm", x.device(), {p.channels, p.batch, p.positions}, {p.positions, p.channels * p.positions, 1}, 1,
            f);
}

}  // namespace

void batch_norm_forward(const BatchNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& running_mean, const Tensor& running_var, const NormResult& result) {
  constexpr const char* kName = "batch_norm";
  dispatch_floating(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    using Value = Accumulator<T>;
    const Statistics<T> statistics(problem.channels, x.device());
    if (problem.training) {
      batch_statistics<T>(problem, statistics, x, running_mean, running_var, result);
    } else if (problem.channels > 0) {
      const DeviceScope scope(x.device());
      launch(kName, each_kernel<RunningStatistics<T>, Statistic<Value>>, map_blocks(problem.channels), kMapThreads, 0,
             scope.stream(), problem.channels,
             RunningStatistics<T>{running_mean.data<T>(), running_var.data<T>(), result.mean.data<Value>(),
                                  result.rstd.data<Value>(), problem.eps},
             statistics.data);
    }
    normalise<T>(kName, NormPlanes(problem), statistics, x, weight, bias, result.y);
  });
}

void row_norm_forward(const RowNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const NormResult& result) {
  if (x.numel() == 0) return;
  dispatch_floating("row_norm", x.dtype(), [&]<class T>(std::type_identity<T>) {
    using Value = Accumulator<T>;
    if (is_held_row(problem, x.dtype())) {
      const DeviceScope scope(x.device());
      return rows_forward<T>("row_norm",
                             {.rows = problem.rows,
                              .length = problem.length(),
                              .eps = problem.eps,
                              .x = x.data<T>(),
                              .weight = data_or_null<T>(weight),
                              .bias = data_or_null<T>(bias),
                              .y = result.y.data<T>(),
                              .mean = result.mean.data<Value>(),
                              .rstd = result.rstd.data<Value>()},
                             scope.stream());
    }
    if (const auto plan = RingPlan::of<T>(problem, RingForward<T>::kOperands, RingForward<T>::kSums,
                                          device_traits(x.device().index))) {
      const DeviceScope scope(x.device());
      return ring_forward<T>("row_norm", *plan,
                             {.x = x.data<T>(),
                              .weight = data_or_null<T>(weight),
                              .bias = data_or_null<T>(bias),
                              .y = result.y.data<T>(),
                              .mean = result.mean.data<Value>(),
                              .rstd = result.rstd.data<Value>(),
                              .eps = problem.eps},
                             scope.stream());
    }
    const Statistics<T> statistics(problem.rows, x.device());
    const TakeStatistics<T> f{x.data<T>(),
                              statistics.data,
                              result.mean.data<Value>(),
                              result.rstd.data<Value>(),
                              static_cast<double>(problem.length()),
                              problem.eps};
    fold_runs("row_norm", x.device(), {problem.rows, problem.length()}, {problem.length(), 1}, 1, f);
    normalise<T>("row_norm", NormPlanes(problem), statistics, x, weight, bias, result.y);
  });
}

}  // namespace halo::cuda
