#include <halo/core/error.h>
#include <halo/core/parallel.h>
#include <halo/ops/binary_functors.h>
#include <halo/ops/reduce_backend.h>

#include <cmath>
#include <limits>

namespace halo::cpu {
namespace {

/// The offset of element `index` of the axes [begin, end) of `t`.
int64_t offset_of(const Tensor& t, int begin, int end, int64_t index) {
  int64_t offset = 0;
  for (int axis = end - 1; axis >= begin; --axis) {
    offset += index % t.shape()[axis] * t.strides()[axis];
    index /= t.shape()[axis];
  }
  return offset;
}

/// The elements that make one result.
template <class T>
struct Group {
  const Tensor& x;
  int kept;
  const T* start;
  int64_t count;

  /// Folds the elements in order, row by row of the innermost axis.
  template <class Acc, class Step>
  Acc fold(Acc acc, Step step) const {
    if (count == 0) return acc;
    if (kept == x.rank()) return step(acc, *start);
    const int last = x.rank() - 1;
    const int64_t length = x.shape()[last], stride = x.strides()[last];
    for (int64_t row = 0; row < count / length; ++row) {
      const T* at = start + offset_of(x, kept, last, row);
      for (int64_t i = 0; i < length; ++i) acc = step(acc, at[i * stride]);
    }
    return acc;
  }
  T largest() const { return fold(*start, functor::Maximum{}); }
  T smallest() const { return fold(*start, functor::Minimum{}); }
};

/// Sums are made in float64 or int64.
template <class T>
using Sum = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;

template <class T>
Sum<T> sum(const Group<T>& group) {
  return group.fold(Sum<T>(0), [](Sum<T> a, T v) { return a + static_cast<Sum<T>>(v); });
}

template <class T>
double mean(const Group<T>& group) {
  return static_cast<double>(sum(group)) / static_cast<double>(group.count);  // 0 / 0 of no elements
}

template <class T>
double log_sum_exp(const Group<T>& group) {
  if (group.count == 0) return -std::numeric_limits<double>::infinity();
  const auto largest = static_cast<double>(group.largest());
  if (!std::isfinite(largest)) return largest;
  return largest +
         std::log(group.fold(0.0, [largest](double a, T v) { return a + std::exp(static_cast<double>(v) - largest); }));
}

/// Scaled by the largest element, so that no square leaves the range of float64.
template <class T>
double norm(const Group<T>& group) {
  const double scale =
      group.fold(0.0, [](double a, T v) { return functor::Maximum{}(a, std::abs(static_cast<double>(v))); });
  if (scale == 0 || !std::isfinite(scale)) return scale;
  return scale * std::sqrt(group.fold(0.0, [scale](double a, T v) {
           const double part = static_cast<double>(v) / scale;
           return a + part * part;
         }));
}

template <class T>
double variance(const Group<T>& group, double correction) {
  const double center = mean(group), divisor = static_cast<double>(group.count) - correction;
  if (!(divisor > 0)) return std::nan("");
  return group.fold(0.0, [center](double a, T v) {
    const double d = static_cast<double>(v) - center;
    return a + d * d;
  }) / divisor;
}

/// out[o] = f(group o), on several threads.
template <class T, class Out, class F>
void for_each_group(const Tensor& x, int kept, const Tensor& out, F f) {
  const T* const in = x.numel() > 0 ? x.data<T>() : nullptr;
  Out* const result = out.data<Out>();
  int64_t count = 1;
  for (int axis = kept; axis < x.rank(); ++axis) count *= x.shape()[axis];
  parallel_for(out.numel(), std::max<int64_t>(1, 4096 / std::max<int64_t>(1, count)), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      const Group<T> group{x, kept, count == 0 ? nullptr : in + offset_of(x, 0, kept, o), count};
      result[o] = static_cast<Out>(f(group));
    }
  });
}

template <class T>
void reduce_as(ReduceOp op, const Tensor& x, int kept, const Tensor& out) {
  const auto run = [&]<class Out>(std::type_identity<Out>, auto f) { for_each_group<T, Out>(x, kept, out, f); };
  constexpr std::type_identity<T> same;
  constexpr std::type_identity<std::conditional_t<std::is_same_v<T, bool>, int64_t, T>> summed;
  constexpr std::type_identity<bool> truth;
  using G = Group<T>;
  switch (op) {
    case ReduceOp::Sum: return run(summed, [](const G& g) { return sum(g); });
    case ReduceOp::Max: return run(same, [](const G& g) { return g.largest(); });
    case ReduceOp::Min: return run(same, [](const G& g) { return g.smallest(); });
    case ReduceOp::Any:
      return run(truth, [](const G& g) { return g.fold(false, [](bool a, T v) { return a || v != T(0); }); });
    case ReduceOp::All:
      return run(truth, [](const G& g) { return g.fold(true, [](bool a, T v) { return a && v != T(0); }); });
    case ReduceOp::Mean:
    case ReduceOp::LogSumExp:
    case ReduceOp::Norm: break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (op == ReduceOp::Mean) return run(same, [](const G& g) { return mean(g); });
    if (op == ReduceOp::Norm) return run(same, [](const G& g) { return norm(g); });
    return run(same, [](const G& g) { return log_sum_exp(g); });
  }
  fail<InternalError>("reduce: expected a floating dtype");
}

}  // namespace

void reduce(ReduceOp op, const Tensor& x, int kept, const Tensor& out) {
  dispatch_arithmetic_dtype("reduce", x.dtype(),
                            [&](auto type) { reduce_as<typename decltype(type)::type>(op, x, kept, out); });
}

void variance(const Tensor& x, int kept, double correction, const Tensor& out) {
  dispatch_float("var", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    for_each_group<T, T>(x, kept, out, [correction](const Group<T>& g) { return variance(g, correction); });
  });
}

}  // namespace halo::cpu
