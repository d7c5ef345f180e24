#include <halo/core/copy.h>
#include <halo/ops/reduce_backend.h>

#include <cmath>

#include "fold.cuh"
#include "moments.cuh"
#include "reduce_float.h"

namespace halo::cuda {
namespace {

/// log(sum(exp(x))) as a maximum and a sum relative to it.
template <class T>
struct LogSumExp {
  struct Acc {
    double largest, sum;
  };
  const T* x;
  T* out;
  __device__ Acc first(const int64_t (&at)[1]) const { return {static_cast<double>(x[at[0]]), 1}; }
  __device__ void add(Acc& acc, const int64_t (&at)[1]) const { acc = (*this)(acc, first(at)); }
  __device__ Acc operator()(const Acc& a, const Acc& b) const {
    if (a.largest == b.largest) return {a.largest, a.sum + b.sum};  // also two infinities, whose difference is NaN
    const bool a_larger = a.largest > b.largest || b.largest != b.largest;
    const Acc& high = a_larger ? a : b;
    const Acc& low = a_larger ? b : a;
    return {high.largest, high.sum + low.sum * exp(low.largest - high.largest)};
  }
  __device__ void write(int64_t o, const Acc& acc) const { out[o] = static_cast<T>(acc.largest + log(acc.sum)); }
};

template <class T>
struct EuclideanNorm {
  using Acc = double;
  const T* x;
  T* out;
  __device__ Acc first(const int64_t (&at)[1]) const {
    const double value = x[at[0]];
    return value * value;
  }
  __device__ void add(Acc& acc, const int64_t (&at)[1]) const { acc += first(at); }
  __device__ Acc operator()(Acc a, Acc b) const { return a + b; }
  __device__ void write(int64_t o, Acc acc) const { out[o] = static_cast<T>(sqrt(acc)); }
};

template <class T>
struct Variance {
  using Acc = Moments;
  const T* x;
  T* out;
  double correction;
  __device__ Acc first(const int64_t (&at)[1]) const { return Moments::of(x[at[0]]); }
  __device__ void add(Acc& acc, const int64_t (&at)[1]) const { acc.add(x[at[0]]); }
  __device__ Acc operator()(const Acc& a, const Acc& b) const { return Moments::combine(a, b); }
  __device__ void write(int64_t o, const Acc& acc) const {
    const double freedom = acc.count - correction;
    out[o] = static_cast<T>(freedom > 0 ? acc.deviation() / freedom : NAN);
  }
};

}  // namespace

void log_sum_exp(const Tensor& x, int kept, const Tensor& out) {
  dispatch_float("logsumexp", x.dtype(), [&]<class T>(std::type_identity<T>) {
    fold<1>("logsumexp", x.device(), x.shape(), {x.strides()}, kept, LogSumExp<T>{x.data<T>(), out.data<T>()});
  });
}

void euclidean_norm(const Tensor& x, int kept, const Tensor& out) {
  dispatch_float("norm", x.dtype(), [&]<class T>(std::type_identity<T>) {
    fold<1>("norm", x.device(), x.shape(), {x.strides()}, kept, EuclideanNorm<T>{x.data<T>(), out.data<T>()});
  });
}

void variance(const Tensor& x, int kept, double correction, const Tensor& out) {
  if (out.numel() == 0) return;
  if (x.numel() == 0) return halo::fill(out, NAN);
  dispatch_float("variance", x.dtype(), [&]<class T>(std::type_identity<T>) {
    fold<1>("variance", x.device(), x.shape(), {x.strides()}, kept,
            Variance<T>{x.data<T>(), out.data<T>(), correction});
  });
}

}  // namespace halo::cuda
