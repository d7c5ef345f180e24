// Normalisation, backward: sums over the statistics' values and over the channels, then the gradient of x.
#include <halo/core/copy.h>
#include <halo/ops/norm_backend.h>

#include "../device/map.cuh"
#include "../reduce/fold.cuh"
#include "layout.h"
#include "rows.h"

namespace halo::cuda {
namespace {

/// What every sum here reads: g, and xhat = (x - mean - shift) rstd.
template <class T>
struct Saved {
  NormLayout layout;
  const T *g, *x, *mean, *rstd;
  const double* shift;  ///< what rounding took from each mean; null: nothing
  __device__ __forceinline__ double difference(int64_t i, int64_t s) const {
    const double from_mean = static_cast<double>(x[i]) - static_cast<double>(mean[s]);
    return shift == nullptr ? from_mean : from_mean - shift[s];
  }
  __device__ __forceinline__ double xhat(int64_t i) const {
    const int64_t s = layout.statistic(i);
    return difference(i, s) * static_cast<double>(rstd[s]);
  }
};

/// For each statistic: sums of h and h xhat, with h = g, or g weight where `weight` is given, and the shift.
template <class T>
struct StatisticSums {
  struct Acc {
    double plain, scaled, difference;
  };
  Saved<T> saved;
  const T* weight;
  double count;
  double *plain, *scaled;
  double* shift;  ///< null: the mean is not one of x
  __device__ Acc first(const int64_t (&at)[1]) const {
    const int64_t i = at[0];
    double h = static_cast<double>(saved.g[i]);
    if (weight != nullptr) h *= static_cast<double>(weight[saved.layout.channel(i)]);
    const double difference = saved.difference(i, saved.layout.statistic(i));
    return {h, h * difference, difference};
  }
  __device__ void add(Acc& acc, const int64_t (&at)[1]) const { acc = (*this)(acc, first(at)); }
  __device__ Acc operator()(const Acc& a, const Acc& b) const {
    return {a.plain + b.plain, a.scaled + b.scaled, a.difference + b.difference};
  }
  __device__ void write(int64_t o, const Acc& acc) const {
    const double lost = shift == nullptr ? 0 : acc.difference / count;
    if (shift != nullptr) shift[o] = lost;
    plain[o] = acc.plain;
    scaled[o] = (acc.scaled - lost * acc.plain) * static_cast<double>(saved.rstd[o]);
  }
};

/// For each channel: sums of g (the gradient of bias) and g xhat (of weight).
template <class T>
struct ChannelSums {
  struct Acc {
    double plain, scaled;
  };
  Saved<T> saved;
  T *bias, *weight;  ///< null: not wanted
  __device__ Acc first(const int64_t (&at)[1]) const {
    const double g = static_cast<double>(saved.g[at[0]]);
    return {g, g * saved.xhat(at[0])};
  }
  __device__ void add(Acc& acc, const int64_t (&at)[1]) const { acc = (*this)(acc, first(at)); }
  __device__ Acc operator()(const Acc& a, const Acc& b) const { return {a.plain + b.plain, a.scaled + b.scaled}; }
  __device__ void write(int64_t o, const Acc& acc) const {
    if (bias != nullptr) bias[o] = static_cast<T>(acc.plain);
    if (weight != nullptr) weight[o] = static_cast<T>(acc.scaled);
  }
};

/// dx = rstd (h - (sum h + xhat sum (h xhat)) / count), or rstd h where there are no sums.
template <class T>
struct InputGradient {
  Saved<T> saved;
  const T* weight;
  const double *plain, *scaled;
  bool sums_lack_weight;  ///< they are of g: a channel has one weight
  double count;
  __device__ T operator()(int64_t i) const {
    const int64_t s = saved.layout.statistic(i);
    const double w = weight == nullptr ? 1.0 : static_cast<double>(weight[saved.layout.channel(i)]);
    double h = static_cast<double>(saved.g[i]) * w;
    if (plain != nullptr) {
      h -= (plain[s] + saved.xhat(i) * scaled[s]) * (sums_lack_weight ? w : 1.0) / count;
    }
    return static_cast<T>(h * static_cast<double>(saved.rstd[s]));
  }
};

/// Sums of each statistic, in float64.
struct Sums {
  Tensor plain, scaled, shift;
  Sums(int64_t count, Device device)
      : plain(empty({count}, {.dtype = float64, .device = device})),
        scaled(empty_like(plain)),
        shift(empty_like(plain)) {}
};

template <class T>
Saved<T> saved(const NormLayout& layout, const Tensor& g, const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  return {layout, g.data<T>(), x.data<T>(), mean.data<T>(), rstd.data<T>(), nullptr};
}

void fill_defined(const Tensor& t, double value) {
  if (t.defined()) halo::fill(t, value);
}

/// Strides of x [N, C, positions] with the channels in front.
Shape channels_first(int64_t channels, int64_t positions) { return {positions, channels * positions, 1}; }

}  // namespace

void batch_norm_backward(const BatchNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                         const Tensor& mean, const Tensor& rstd, const NormGrads& grads) {
  constexpr const char* kName = "batch_norm_backward";
  if (x.numel() == 0) {
    fill_defined(grads.weight, 0);
    return fill_defined(grads.bias, 0);
  }
  const auto count = static_cast<double>(problem.count());
  dispatch_float(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    Saved<T> values = saved<T>(NormLayout(problem), g, x, mean, rstd);
    const Sums sums(problem.channels, x.device());
    double *const plain = sums.plain.data<double>(), *const scaled = sums.scaled.data<double>();
    double* const shift = problem.training ? sums.shift.data<double>() : nullptr;
    fold<1>(kName, x.device(), {problem.channels, problem.batch, problem.positions},
            {channels_first(problem.channels, problem.positions)}, 1,
            StatisticSums<T>{values, nullptr, count, plain, scaled, shift});
    if (grads.bias.defined()) halo::copy(sums.plain, grads.bias);
    if (grads.weight.defined()) halo::copy(sums.scaled, grads.weight);
    if (!grads.x.defined()) return;
    values.shift = shift;
    generate(kName,
             InputGradient<T>{values, data_or_null<T>(weight), problem.training ? plain : nullptr, scaled, true, count},
             Elements<T>{grads.x});
  });
}

void row_norm_backward(const RowNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                       const Tensor& mean, const Tensor& rstd, const NormGrads& grads) {
  constexpr const char* kName = "row_norm_backward";
  if (x.numel() == 0) {
    fill_defined(grads.weight, 0);
    return fill_defined(grads.bias, 0);
  }
  if (is_warp_row(problem)) {
    return dispatch_float(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
      const Tensor workspace = empty({rows_backward_workspace(problem.rows, problem.length())}, x.options());
      const DeviceScope scope(x.device());
      rows_backward<T>(kName,
                       {.rows = problem.rows,
                        .length = problem.length(),
                        .x = x.data<T>(),
                        .mean = mean.data<T>(),
                        .rstd = rstd.data<T>(),
                        .weight = data_or_null<T>(weight),
                        .g_y = g.data<T>(),
                        .x_grad = data_or_null<T>(grads.x),
                        .weight_grad = data_or_null<T>(grads.weight),
                        .bias_grad = data_or_null<T>(grads.bias)},
                       workspace.data<T>(), scope.stream());
    });
  }
  const auto count = static_cast<double>(problem.length());
  dispatch_float(kName, x.dtype(), [&]<class T>(std::type_identity<T>) {
    Saved<T> values = saved<T>(NormLayout(problem), g, x, mean, rstd);
    const Sums sums(problem.rows, x.device());
    double *const plain = sums.plain.data<double>(), *const scaled = sums.scaled.data<double>();
    double* const shift = sums.shift.data<double>();
    const T* const w = data_or_null<T>(weight);
    fold<1>(kName, x.device(), {problem.rows, problem.length()}, {Shape{problem.length(), 1}}, 1,
            StatisticSums<T>{values, w, count, plain, scaled, shift});
    values.shift = shift;
    if (grads.weight.defined() || grads.bias.defined()) {
      fold<1>(kName, x.device(), {problem.channels(), problem.rows / problem.groups, problem.positions},
              {channels_first(problem.channels(), problem.positions)}, 1,
              ChannelSums<T>{values, data_or_null<T>(grads.bias), data_or_null<T>(grads.weight)});
    }
    if (!grads.x.defined()) return;
    generate(kName, InputGradient<T>{values, w, plain, scaled, false, count}, Elements<T>{grads.x});
  });
}

}  // namespace halo::cuda
