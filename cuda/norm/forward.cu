// Normalisation, forward: statistics in one pass (reduce/moments.cuh), then y = (x - mean) rstd weight + bias.
#include <halo/core/copy.h>
#include <halo/ops/norm_backend.h>

#include "../device/map.cuh"
#include "../reduce/fold.cuh"
#include "../reduce/moments.cuh"
#include "layout.h"
#include "rows.h"

namespace halo::cuda {
namespace {

/// Mean and reciprocal deviation of each output: as kept for backward, and unrounded for use now; and the running
/// statistics where they are given.
template <class T>
struct Statistics {
  using Acc = Moments;
  const T* x;
  T *mean, *rstd;
  double *exact_mean, *exact_rstd;
  double eps;
  T *running_mean = nullptr, *running_var = nullptr;
  double momentum = 0;
  __device__ Acc first(const int64_t (&at)[1]) const { return Moments::of(x[at[0]]); }
  __device__ void add(Acc& acc, const int64_t (&at)[1]) const { acc.add(x[at[0]]); }
  __device__ Acc operator()(const Acc& a, const Acc& b) const { return Moments::combine(a, b); }
  __device__ void write(int64_t o, const Acc& acc) const {
    exact_mean[o] = acc.mean();
    exact_rstd[o] = 1 / sqrt(acc.deviation() / acc.count + eps);
    mean[o] = static_cast<T>(exact_mean[o]);
    rstd[o] = static_cast<T>(exact_rstd[o]);
    if (running_mean != nullptr) running_mean[o] = blend(running_mean[o], acc.mean());
    if (running_var != nullptr) running_var[o] = blend(running_var[o], acc.deviation() / (acc.count - 1));
  }
  __device__ T blend(T old, double now) const {
    return static_cast<T>((1 - momentum) * static_cast<double>(old) + momentum * now);
  }
};

/// What evaluation uses: the running statistics.
template <class T>
struct ReciprocalRoot {
  double eps;
  __device__ double operator()(T variance) const { return 1 / sqrt(static_cast<double>(variance) + eps); }
};

template <class T>
struct Normalise {
  NormLayout layout;
  const double *mean, *rstd;
  const T *weight, *bias;
  __device__ T operator()(int64_t i, T x) const {
    const int64_t channel = layout.channel(i), s = layout.by_channel ? channel : layout.statistic(i);
    double y = (static_cast<double>(x) - mean[s]) * rstd[s];
    if (weight != nullptr) y *= static_cast<double>(weight[channel]);
    if (bias != nullptr) y += static_cast<double>(bias[channel]);
    return static_cast<T>(y);
  }
};

/// The unrounded statistics.
struct Exact {
  Tensor mean, rstd;
  Exact(int64_t count, Device device)
      : mean(empty({count}, {.dtype = float64, .device = device})), rstd(empty_like(mean)) {}
};

template <class T>
void normalise(const char* name, const NormLayout& layout, const Exact& exact, const Tensor& x, const Tensor& weight,
               const Tensor& bias, const Tensor& y) {
  const Normalise<T> f{layout, exact.mean.data<double>(), exact.rstd.data<double>(), data_or_null<T>(weight),
                       data_or_null<T>(bias)};
  generate(name, f, Elements<T>{y}, Elements<T>{x});
}

template <class T>
void batch_statistics(const BatchNormProblem& p, const Exact& exact, const Tensor& x, const Tensor& running_mean,
                      const Tensor& running_var, const NormResult& result) {
  if (p.channels == 0) return;
  if (p.count() == 0) {
    halo::fill(result.mean, 0);
    halo::fill(result.rstd, 0);
    return;
  }
  const Statistics<T> f{x.data<T>(),
                        result.mean.data<T>(),
                        result.rstd.data<T>(),
                        exact.mean.data<double>(),
                        exact.rstd.data<double>(),
                        p.eps,
                        data_or_null<T>(running_mean),
                        data_or_null<T>(running_var),
                        p.momentum};
  fold<1>("batch_norm", x.device(), {p.channels, p.batch, p.positions},
          {Shape{p.positions, p.channels * p.positions, 1}}, 1, f);
}

}  // namespace

void batch_norm_forward(const BatchNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& running_mean, const Tensor& running_var, const NormResult& result) {
  const Exact exact(problem.channels, x.device());
  dispatch_float("batch_norm", x.dtype(), [&]<class T>(std::type_identity<T>) {
    if (problem.training) {
      batch_statistics<T>(problem, exact, x, running_mean, running_var, result);
    } else {
      halo::copy(running_mean, exact.mean);
      map("batch_norm", ReciprocalRoot<T>{problem.eps}, Elements<double>{exact.rstd}, Elements<T>{running_var});
      halo::copy(exact.mean, result.mean);
      halo::copy(exact.rstd, result.rstd);
    }
    normalise<T>("batch_norm", NormLayout(problem), exact, x, weight, bias, result.y);
  });
}

void row_norm_forward(const RowNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const NormResult& result) {
  if (x.numel() == 0) return;
  if (is_warp_row(problem)) {
    return dispatch_float("row_norm", x.dtype(), [&]<class T>(std::type_identity<T>) {
      const DeviceScope scope(x.device());
      rows_forward<T>("row_norm",
                      {.rows = problem.rows,
                       .length = problem.length(),
                       .eps = problem.eps,
                       .x = x.data<T>(),
                       .weight = data_or_null<T>(weight),
                       .bias = data_or_null<T>(bias),
                       .y = result.y.data<T>(),
                       .mean = result.mean.data<T>(),
                       .rstd = result.rstd.data<T>()},
                      scope.stream());
    });
  }
  const Exact exact(problem.rows, x.device());
  dispatch_float("row_norm", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const Statistics<T> f{
        x.data<T>(), result.mean.data<T>(), result.rstd.data<T>(), exact.mean.data<double>(), exact.rstd.data<double>(),
        problem.eps};
    fold<1>("row_norm", x.device(), {problem.rows, problem.length()}, {Shape{problem.length(), 1}}, 1, f);
    normalise<T>("row_norm", NormLayout(problem), exact, x, weight, bias, result.y);
  });
}

}  // namespace halo::cuda
