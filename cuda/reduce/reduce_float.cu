#include <halo/core/copy.h>
#include <halo/ops/binary_functors.h>
#include <halo/ops/reduce_backend.h>

#include <cmath>

#include "../device/number.cuh"
#include "fold_runs.cuh"
#include "moments.cuh"
#include "reduce_float.h"

namespace halo::cuda {
namespace {

using device::from_accumulator;
using device::to_accumulator;

template <class T>
__device__ double to_double(T value) {
  return static_cast<double>(to_accumulator(value));
}
template <class T>
__device__ T from_double(double value) {
  return from_accumulator<T>(static_cast<device::Accumulator<T>>(value));
}

/// log(sum(exp(x))) as a maximum and a sum relative to it.
template <class T>
struct LogSumExp {
  using Value = device::Accumulator<T>;
  struct Acc {
    Value largest;
    double sum;
  };
  const T* x;
  T* out;
  __device__ Acc start(int64_t, int64_t at) const { return {to_accumulator(x[at]), 0}; }
  __device__ void add(Acc& acc, int64_t, T value) const { acc = (*this)(acc, {to_accumulator(value), 1}); }
  __device__ Acc operator()(const Acc& a, const Acc& b) const {
    if (a.largest == b.largest) return {a.largest, a.sum + b.sum};  // also two infinities, whose difference is NaN
    const bool a_larger = a.largest > b.largest || b.largest != b.largest;
    const Acc& high = a_larger ? a : b;
    const Acc& low = a_larger ? b : a;
    return {high.largest, high.sum + low.sum * static_cast<double>(exp(low.largest - high.largest))};
  }
  __device__ void write(int64_t o, const Acc& acc) const {
    out[o] = from_double<T>(static_cast<double>(acc.largest) + log(acc.sum));
  }
};

/// Squares of float64 are kept relative to the largest, or they would leave its range.
template <class T>
struct EuclideanNorm {
  static constexpr bool kScaled = sizeof(T) == 8;
  struct Acc {
    double largest, squares;  ///< the sum is squares * largest^2
  };
  const T* x;
  T* out;
  __device__ Acc start(int64_t, int64_t) const { return {kScaled ? 0.0 : 1.0, 0}; }
  __device__ void add(Acc& acc, int64_t, T value) const {
    const double size = fabs(to_double(value));
    if constexpr (kScaled) {
      acc = (*this)(acc, {size, 1});
    } else {
      acc.squares += size * size;
    }
  }
  __device__ Acc operator()(const Acc& a, const Acc& b) const {
    if constexpr (kScaled) {
      const double top = functor::Maximum{}(a.largest, b.largest);
      if (top == 0) return {0, 0};
      const double of_a = a.largest / top, of_b = b.largest / top;
      return {top, a.squares * of_a * of_a + b.squares * of_b * of_b};
    } else {
      return {1, a.squares + b.squares};
    }
  }
  __device__ void write(int64_t o, const Acc& acc) const {
    out[o] = from_double<T>(isfinite(acc.largest) ? acc.largest * sqrt(acc.squares) : acc.largest);
  }
};

template <class T>
struct Variance {
  using Acc = Moments;
  const T* x;
  T* out;
  double count, correction;
  __device__ Acc start(int64_t, int64_t at) const { return Moments::around(to_double(x[at])); }
  __device__ void add(Acc& acc, int64_t, T value) const { acc.add(to_double(value)); }
  template <int N>
  __device__ void add_packs(Acc& acc, int count, const Pack<T, kWide<T>> (&packs)[N]) const requires(sizeof(T) < 8) {
    acc.add_packs(count, packs);
  }
  __device__ Acc operator()(const Acc& a, const Acc& b) const { return Moments::combine(a, b); }
  __device__ void write(int64_t o, const Acc& acc) const {
    const double freedom = count - correction;
    out[o] = from_double<T>(freedom > 0 ? acc.deviation(count) / freedom : NAN);
  }
};

}  // namespace

void log_sum_exp(const Tensor& x, int kept, const Tensor& out) {
  dispatch_floating("logsumexp", x.dtype(), [&]<class T>(std::type_identity<T>) {
    fold_runs("logsumexp", x.device(), x.shape(), x.strides(), kept, LogSumExp<T>{x.data<T>(), out.data<T>()});
  });
}

void euclidean_norm(const Tensor& x, int kept, const Tensor& out) {
  dispatch_floating("norm", x.dtype(), [&]<class T>(std::type_identity<T>) {
    fold_runs("norm", x.device(), x.shape(), x.strides(), kept, EuclideanNorm<T>{x.data<T>(), out.data<T>()});
  });
}

void variance(const Tensor& x, int kept, double correction, const Tensor& out) {
  if (out.numel() == 0) return;
  if (x.numel() == 0) return halo::fill(out, NAN);
  const auto count = static_cast<double>(x.numel() / out.numel());
  dispatch_floating("variance", x.dtype(), [&]<class T>(std::type_identity<T>) {
    fold_runs("variance", x.device(), x.shape(), x.strides(), kept,
              Variance<T>{x.data<T>(), out.data<T>(), count, correction});
  });
}

}  // namespace halo::cuda
