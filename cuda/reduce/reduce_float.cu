#include <halo/core/copy.h>
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

template <class T>
struct EuclideanNorm {
  using Acc = double;
  const T* x;
  T* out;
  __device__ Acc start(int64_t, int64_t) const { return 0; }
  __device__ void add(Acc& acc, int64_t, T value) const { acc += to_double(value) * to_double(value); }
  __device__ Acc operator()(Acc a, Acc b) const { return a + b; }
  __device__ void write(int64_t o, Acc acc) const { out[o] = from_double<T>(sqrt(acc)); }
};

template <class T>
struct Variance {
  using Acc = Moments;
  const T* x;
  T* out;
  double count, correction;
  __device__ Acc start(int64_t, int64_t at) const { return Moments::around(to_double(x[at])); }
  __device__ void add(Acc& acc, int64_t, T value) const { acc.add(to_double(value)); }
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
