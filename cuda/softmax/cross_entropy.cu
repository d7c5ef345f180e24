// Losses over classes: a team of threads a position, its classes a row.
#include <halo/ops/binary_functors.h>
#include <halo/ops/cross_entropy_backend.h>

#include "../device/rows.h"
#include "../device/teams.cuh"
#include "../launch.h"
#include "../runtime/device.h"

namespace halo::cuda {
namespace {

template <class T>
struct Operands {
  Rows rows;
  Teams teams;
  ClassLoss options;
  const T* x;
  const int64_t* target;
  const T* weight;  ///< null: all 1

  __device__ double weight_of(int64_t c) const { return weight == nullptr ? 1.0 : static_cast<double>(weight[c]); }
  /// The share of class c in the target distribution of label t.
  __device__ double share(int64_t c, int64_t t) const {
    const double spread = options.label_smoothing / static_cast<double>(rows.length);
    return weight_of(c) * (spread + (c == t ? 1 - options.label_smoothing : 0));
  }
};

/// One position as its team sees it.
struct Position {
  int64_t index, begin, length, label;
  bool active, ignored, valid;

  template <class T>
  __device__ explicit Position(const Operands<T>& p) {
    index = int64_t{blockIdx.x} * p.teams.lanes + p.teams.lane();
    active = index < p.rows.count;
    label = active ? p.target[index] : 0;
    begin = active ? p.rows.begin(index) : 0;
    ignored = active && label == p.options.ignore_index;
    valid = active && !ignored && label >= 0 && label < p.rows.length;
    length = valid ? p.rows.length : 0;
  }
};

template <class T>
__device__ double log_sum_exp(const Operands<T>& p, const Position& position, double* values) {
  T largest = -static_cast<T>(INFINITY);
  for (int64_t c = p.teams.rank(); c < position.length; c += p.teams.depth) {
    largest = functor::Maximum{}(largest, p.x[position.begin + c * p.rows.step]);
  }
  double top = combine_team(p.teams, static_cast<double>(largest), values, functor::Maximum{});
  if (isinf(top) && top < 0) top = 0;  // the sum is 0 then, without inf - inf; +inf makes NaN, as in softmax
  double sum = 0;
  for (int64_t c = p.teams.rank(); c < position.length; c += p.teams.depth) {
    sum += exp(static_cast<double>(p.x[position.begin + c * p.rows.step]) - top);
  }
  return top + log(combine_team(p.teams, sum, values, functor::Add{}));
}

template <class T>
__global__ void __launch_bounds__(Teams::kThreads)
    cross_entropy_kernel(const __grid_constant__ Operands<T> p, T* loss, double* lse, T* counted) {
  __shared__ double values[Teams::kThreads];
  const Position position(p);
  const double log_sum = p.options.log_probabilities ? 0 : log_sum_exp(p, position, values);
  double sum = 0;
  for (int64_t c = p.teams.rank(); c < position.length; c += p.teams.depth) {
    const double share = p.share(c, position.label);
    if (share != 0) sum += share * (log_sum - static_cast<double>(p.x[position.begin + c * p.rows.step]));
  }
  sum = combine_team(p.teams, sum, values, functor::Add{});
  if (!position.active || p.teams.rank() != 0) return;
  const bool wrong = !position.valid && !position.ignored;
  loss[position.index] = static_cast<T>(position.valid ? sum : wrong ? NAN : 0);
  lse[position.index] = position.valid ? log_sum : wrong ? NAN : 0;
  counted[position.index] = static_cast<T>(position.valid ? p.weight_of(position.label) : wrong ? NAN : 0);
}

template <class T>
__global__ void __launch_bounds__(Teams::kThreads)
    cross_entropy_backward_kernel(const __grid_constant__ Operands<T> p, const double* lse, const T* g, T* dx) {
  __shared__ double values[Teams::kThreads];
  const Position position(p);
  double total = 0;  // of the shares
  for (int64_t c = p.teams.rank(); c < position.length; c += p.teams.depth) total += p.share(c, position.label);
  total = combine_team(p.teams, total, values, functor::Add{});
  if (!position.active) return;
  const double up = static_cast<double>(g[position.index]), log_sum = lse[position.index];
  for (int64_t c = p.teams.rank(); c < p.rows.length; c += p.teams.depth) {
    const int64_t at = position.begin + c * p.rows.step;
    double gradient = position.ignored ? 0 : NAN;
    if (position.valid) {
      const double p_c = p.options.log_probabilities ? 0 : exp(static_cast<double>(p.x[at]) - log_sum);
      gradient = up * (total * p_c - p.share(c, position.label));
    }
    dx[at] = static_cast<T>(gradient);
  }
}

template <class T>
Operands<T> operands(const ClassLoss& options, const Tensor& x, const Tensor& target, const Tensor& weight) {
  const Rows rows(x, 1);
  return {rows,
          Teams::of(rows.count, rows.length, rows.step > 1),
          options,
          x.numel() > 0 ? x.data<T>() : nullptr,
          target.data<int64_t>(),
          weight.defined() ? weight.data<T>() : nullptr};
}

}  // namespace

void cross_entropy(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                   const Tensor& weight, const Tensor& loss, const Tensor& lse, const Tensor& counted) {
  if (target.numel() == 0) return;
  dispatch_float(op, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto p = operands<T>(options, x, target, weight);
    const DeviceScope scope(x.device());
    launch(op, cross_entropy_kernel<T>, p.teams.blocks(p.rows.count), Teams::kThreads, 0, scope.stream(), p,
           loss.data<T>(), lse.data<double>(), counted.data<T>());
  });
}

void cross_entropy_backward(const char* op, const ClassLoss& options, const Tensor& x, const Tensor& target,
                            const Tensor& weight, const Tensor& lse, const Tensor& g, const Tensor& dx) {
  if (x.numel() == 0) return;
  dispatch_float(op, x.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto p = operands<T>(options, x, target, weight);
    const DeviceScope scope(x.device());
    launch(op, cross_entropy_backward_kernel<T>, p.teams.blocks(p.rows.count), Teams::kThreads, 0, scope.stream(), p,
           lse.data<double>(), g.data<T>(), dx.data<T>());
  });
}

}  // namespace halo::cuda
