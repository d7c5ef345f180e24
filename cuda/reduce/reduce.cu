// Reductions over any axes. Sums accumulate in float64 (integers in int64).
#include <halo/core/copy.h>
#include <halo/ops/binary_functors.h>
#include <halo/ops/reduce_backend.h>

#include <cmath>

#include "fold.cuh"
#include "reduce_float.h"

namespace halo::cuda {
namespace {

template <class T, class Out>
struct Sum {
  using Acc = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
  const T* x;
  Out* out;
  double divisor;  ///< the count for a mean
  __device__ Acc first(const int64_t (&at)[1]) const { return static_cast<Acc>(x[at[0]]); }
  __device__ void add(Acc& acc, const int64_t (&at)[1]) const { acc += static_cast<Acc>(x[at[0]]); }
  __device__ Acc operator()(Acc a, Acc b) const { return a + b; }
  __device__ void write(int64_t o, Acc acc) const {
    if constexpr (std::is_floating_point_v<T>) acc /= divisor;
    out[o] = static_cast<Out>(acc);
  }
};

template <class T, class F>
struct Extreme {
  using Acc = T;
  const T* x;
  T* out;
  __device__ Acc first(const int64_t (&at)[1]) const { return x[at[0]]; }
  __device__ void add(Acc& acc, const int64_t (&at)[1]) const { acc = F{}(acc, x[at[0]]); }
  __device__ Acc operator()(Acc a, Acc b) const { return F{}(a, b); }
  __device__ void write(int64_t o, Acc acc) const { out[o] = acc; }
};

/// Any element not 0, or all.
template <class T, bool kAll>
struct Truth {
  using Acc = bool;
  const T* x;
  bool* out;
  __device__ Acc first(const int64_t (&at)[1]) const { return x[at[0]] != T(0); }
  __device__ void add(Acc& acc, const int64_t (&at)[1]) const { acc = (*this)(acc, x[at[0]] != T(0)); }
  __device__ Acc operator()(Acc a, Acc b) const { return kAll ? a && b : a || b; }
  __device__ void write(int64_t o, Acc acc) const { out[o] = acc; }
};

/// What nothing at all reduces to.
Scalar of_nothing(ReduceOp op) {
  switch (op) {
    case ReduceOp::Mean: return NAN;
    case ReduceOp::LogSumExp: return -INFINITY;
    case ReduceOp::All: return 1;
    default: return 0;
  }
}

template <class T>
void reduce_as(ReduceOp op, const Tensor& x, int kept, const Tensor& out) {
  using Total = std::conditional_t<std::is_same_v<T, bool>, int64_t, T>;  // a sum of masks counts
  const T* const in = x.data<T>();
  const auto run = [&](const auto& f) { fold<1>("reduce", x.device(), x.shape(), {x.strides()}, kept, f); };
  switch (op) {
    case ReduceOp::Sum: return run(Sum<T, Total>{in, out.data<Total>(), 1});
    case ReduceOp::Mean: return run(Sum<T, T>{in, out.data<T>(), static_cast<double>(x.numel() / out.numel())});
    case ReduceOp::Max: return run(Extreme<T, functor::Maximum>{in, out.data<T>()});
    case ReduceOp::Min: return run(Extreme<T, functor::Minimum>{in, out.data<T>()});
    case ReduceOp::Any: return run(Truth<T, false>{in, out.data<bool>()});
    case ReduceOp::All: return run(Truth<T, true>{in, out.data<bool>()});
    case ReduceOp::LogSumExp: return log_sum_exp(x, kept, out);
    case ReduceOp::Norm: return euclidean_norm(x, kept, out);
  }
  fail<InternalError>("reduce: unknown op");
}

}  // namespace

void reduce(ReduceOp op, const Tensor& x, int kept, const Tensor& out) {
  if (out.numel() == 0) return;
  if (x.numel() == 0) return halo::fill(out, of_nothing(op));
  dispatch_arithmetic_dtype("reduce", x.dtype(),
                            [&]<class T>(std::type_identity<T>) { reduce_as<T>(op, x, kept, out); });
}

}  // namespace halo::cuda
