// Reductions on the CPU. Every one is made of folds: for each output the elements are taken in order, in chunks that do
// not depend on the number of threads, and the chunks' results are combined in order.
#include <halo/core/error.h>
#include <halo/core/strided.h>
#include <halo/ops/binary_functors.h>
#include <halo/ops/reduce_backend.h>

#include <cmath>
#include <limits>
#include <vector>

namespace halo::cpu {
namespace {

/// x as [outputs, elements of an output], both with as few axes as its strides allow.
template <class T>
struct Grouped {
  Grouped(const Tensor& x, int kept)
      : data(x.numel() > 0 ? x.data<T>() : nullptr), outer(axes(x, 0, kept)), inner(axes(x, kept, x.rank())) {}

  static StridedLoop<1> axes(const Tensor& x, int begin, int end) {
    Shape shape, strides;
    for (int i = begin; i < end; ++i) {
      shape.push_back(x.shape()[i]);
      strides.push_back(x.strides()[i]);
    }
    return {shape, {strides}};
  }

  /// The offset of element `index` of the axes of `loop`.
  static int64_t offset(const StridedLoop<1>& loop, int64_t index) {
    int64_t result = 0;
    for (int axis = loop.shape.rank() - 1; axis >= 0; --axis) {
      result += index % loop.shape[axis] * loop.strides[0][axis];
      index /= loop.shape[axis];
    }
    return result;
  }

  int64_t outputs() const { return outer.numel(); }
  int64_t count() const { return inner.numel(); }

  const T* data;
  StridedLoop<1> outer, inner;
};

/// acc[i] = step(acc[i], output i, element) for `width` outputs, neighbours along the last outer axis, and the elements
/// [begin, end) of each. The inner loop runs along the smaller stride.
template <class T, class Acc, class Step>
void fold_block(const Grouped<T>& x, int64_t first, int64_t width, int64_t begin, int64_t end, Acc* acc, Step step) {
  const T* const base = x.data + x.offset(x.outer, first);
  const int64_t across = x.outer.strides[0].back(), along = x.inner.strides[0].back(), length = x.inner.shape.back();
  for (int64_t at = begin; at < end;) {
    const int64_t run = std::min(length - at % length, end - at);
    const T* const start = base + x.offset(x.inner, at);
    if (along <= across) {
      for (int64_t o = 0; o < width; ++o) {
        for (int64_t i = 0; i < run; ++i) acc[o] = step(acc[o], first + o, start[o * across + i * along]);
      }
    } else if (across == 1) {  // neighbours in memory: a loop the compiler can vectorise
      for (int64_t i = 0; i < run; ++i) {
        const T* const row = start + i * along;
        for (int64_t o = 0; o < width; ++o) acc[o] = step(acc[o], first + o, row[o]);
      }
    } else {
      for (int64_t i = 0; i < run; ++i) {
        for (int64_t o = 0; o < width; ++o) acc[o] = step(acc[o], first + o, start[o * across + i * along]);
      }
    }
    at += run;
  }
}

/// For each output the fold of its elements from `start` on.
template <class T, class Acc, class Step, class Combine>
std::vector<Acc> fold(const Grouped<T>& x, Acc start, Step step, Combine combine) {
  constexpr int64_t kChunk = 32768, kWidth = 32;
  const int64_t outputs = x.outputs(), count = x.count();
  std::vector<Acc> result(static_cast<std::size_t>(outputs), start);
  if (outputs == 0 || count == 0) return result;
  const int64_t chunks = (count + kChunk - 1) / kChunk;
  // A block lies within the last outer axis.
  const int64_t row = x.outer.shape.back(), blocks_a_row = (row + kWidth - 1) / kWidth;
  const int64_t blocks = outputs / row * blocks_a_row;
  std::vector<Acc> partial(static_cast<std::size_t>(chunks * outputs), start);
  const int64_t grain = std::max<int64_t>(1, kChunk / (std::min(count, kChunk) * std::min(row, kWidth)));
  parallel_for(blocks * chunks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t block = task % blocks, chunk = task / blocks;
      const int64_t in_row = block % blocks_a_row * kWidth, first = block / blocks_a_row * row + in_row;
      fold_block(x, first, std::min(kWidth, row - in_row), chunk * kChunk, std::min(count, (chunk + 1) * kChunk),
                 partial.data() + chunk * outputs + first, step);
    }
  });
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t o = 0; o < outputs; ++o) {
      Acc& r = result[static_cast<std::size_t>(o)];
      const Acc& p = partial[static_cast<std::size_t>(chunk * outputs + o)];
      r = chunk == 0 ? p : combine(r, p);
    }
  }
  return result;
}

/// Sums are made in float64 or int64.
template <class T>
using Sum = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;

/// For each output the sum of f(output, element).
template <class Acc, class T, class F>
std::vector<Acc> sum_of(const Grouped<T>& x, F f) {
  return fold(
      x, Acc(0), [f](Acc a, int64_t o, T v) { return a + f(o, v); }, [](Acc a, Acc b) { return a + b; });
}

template <class T>
std::vector<Sum<T>> sum(const Grouped<T>& x) {
  return sum_of<Sum<T>>(x, [](int64_t, T v) { return static_cast<Sum<T>>(v); });
}

template <class T, class Better>
std::vector<T> extreme(const Grouped<T>& x, T start, Better better) {
  return fold(
      x, start, [better](T a, int64_t, T v) { return better(a, v); }, better);
}

template <class T>
constexpr T lowest() {
  return std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
}
template <class T>
constexpr T highest() {
  return std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
}

template <class T>
std::vector<double> mean(const Grouped<T>& x) {
  std::vector<double> result = sum(x);
  for (double& r : result) r /= static_cast<double>(x.count());  // 0 / 0 of no elements
  return result;
}

/// Where the largest element is no number to subtract (-inf, inf, NaN), it is the result.
template <class T>
std::vector<double> log_sum_exp(const Grouped<T>& x) {
  const std::vector<T> largest = extreme(x, lowest<T>(), functor::Maximum{});
  std::vector<double> result = sum_of<double>(x, [&largest](int64_t o, T v) {
    return std::exp(static_cast<double>(v) - static_cast<double>(largest[static_cast<std::size_t>(o)]));
  });
  for (std::size_t o = 0; o < result.size(); ++o) {
    const auto top = static_cast<double>(largest[o]);
    result[o] = std::isfinite(top) ? top + std::log(result[o]) : top;
  }
  return result;
}

/// Scaled by the largest element, so that no square leaves the range of float64.
template <class T>
std::vector<double> norm(const Grouped<T>& x) {
  const auto larger = [](double a, double b) { return functor::Maximum{}(a, b); };
  const std::vector<double> scale = fold(
      x, 0.0, [larger](double a, int64_t, T v) { return larger(a, std::abs(static_cast<double>(v))); }, larger);
  std::vector<double> result = sum_of<double>(x, [&scale](int64_t o, T v) {
    const double part = static_cast<double>(v) / scale[static_cast<std::size_t>(o)];
    return part * part;
  });
  for (std::size_t o = 0; o < result.size(); ++o) {
    result[o] = scale[o] == 0 || !std::isfinite(scale[o]) ? scale[o] : scale[o] * std::sqrt(result[o]);
  }
  return result;
}

template <class Acc>
void store(const std::vector<Acc>& values, const Tensor& out) {
  dispatch_arithmetic_dtype("reduce", out.dtype(), [&](auto type) {
    using Out = typename decltype(type)::type;
    Out* const result = out.data<Out>();
    for (std::size_t o = 0; o < values.size(); ++o) result[o] = static_cast<Out>(values[o]);
  });
}

/// Whether any element is `wanted` when seen as a truth value; one byte an output, since vector<bool> has no elements.
template <class T>
std::vector<uint8_t> any_is(const Grouped<T>& x, bool wanted) {
  return fold(
      x, uint8_t{0}, [wanted](uint8_t a, int64_t, T v) { return static_cast<uint8_t>(a | ((v != T(0)) == wanted)); },
      [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a | b); });
}

template <class T>
void reduce_as(ReduceOp op, const Grouped<T>& x, const Tensor& out) {
  switch (op) {
    case ReduceOp::Sum: return store(sum(x), out);
    case ReduceOp::Any: return store(any_is(x, true), out);
    case ReduceOp::All: {
      std::vector<uint8_t> result = any_is(x, false);
      for (uint8_t& r : result) r = r == 0;
      return store(result, out);
    }
    case ReduceOp::Max:
    case ReduceOp::Min:
      if constexpr (std::is_same_v<T, bool>) {
        return reduce_as<T>(op == ReduceOp::Max ? ReduceOp::Any : ReduceOp::All, x, out);
      } else if (op == ReduceOp::Max) {
        return store(extreme(x, lowest<T>(), functor::Maximum{}), out);
      } else {
        return store(extreme(x, highest<T>(), functor::Minimum{}), out);
      }
    case ReduceOp::Mean:
    case ReduceOp::LogSumExp:
    case ReduceOp::Norm: break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (op == ReduceOp::Mean) return store(mean(x), out);
    return store(op == ReduceOp::Norm ? norm(x) : log_sum_exp(x), out);
  }
  fail<InternalError>("reduce: expected a floating dtype");
}

}  // namespace

void reduce(ReduceOp op, const Tensor& x, int kept, const Tensor& out) {
  dispatch_arithmetic_dtype("reduce", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    reduce_as<T>(op, Grouped<T>(x, kept), out);
  });
}

void variance(const Tensor& x, int kept, double correction, const Tensor& out) {
  dispatch_float("var", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const Grouped<T> grouped(x, kept);
    const std::vector<double> center = mean(grouped);
    std::vector<double> result = sum_of<double>(grouped, [&center](int64_t o, T v) {
      const double d = static_cast<double>(v) - center[static_cast<std::size_t>(o)];
      return d * d;
    });
    const double divisor = static_cast<double>(grouped.count()) - correction;
    for (double& r : result) r = divisor > 0 ? r / divisor : std::nan("");
    store(result, out);
  });
}

}  // namespace halo::cpu
