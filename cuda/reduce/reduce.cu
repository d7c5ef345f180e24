// Reductions over any axes. Sums accumulate in float64 (integers in int64).
#include <halo/core/copy.h>
#include <halo/core/view.h>
#include <halo/ops/binary_backend.h>
#include <halo/ops/binary_functors.h>
#include <halo/ops/reduce_backend.h>

#include <cmath>

#include "../device/exponential.cuh"
#include "../device/widen.cuh"
#include "fold_runs.cuh"
#include "reduce_float.h"
#include "sum_columns.h"

namespace halo::cuda {
namespace {

using device::Accumulator;
using device::from_accumulator;
using device::to_accumulator;

/// The type sums of T are kept in.
template <class T>
using Total = std::conditional_t<std::is_integral_v<T>, int64_t, double>;

template <class T, class Out>
struct Sum {
  using Acc = Total<T>;
  const T* x;
  Out* out;
  double divisor;  ///< the count for a mean
  __device__ Acc start(int64_t, int64_t) const { return 0; }
  __device__ void add(Acc& acc, int64_t, T value) const { acc += static_cast<Acc>(to_accumulator(value)); }
  /// Eight half-precision numbers in float32, which rounds far less than they did.
  __device__ void add_pack(Acc& acc, const Pack<T, kWide<T>>& pack) const
      requires(sizeof(T) < 8 && !std::is_integral_v<T>) {
    const auto wide = device::widen(pack);
    if constexpr (sizeof(T) == 2) {
      float sums[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[k] = wide.at[k] + wide.at[k + 4];
      acc += static_cast<Acc>((sums[0] + sums[2]) + (sums[1] + sums[3]));
    } else {
#pragma unroll
      for (const auto value : wide.at) acc += static_cast<Acc>(value);
    }
  }
  __device__ Acc operator()(Acc a, Acc b) const { return a + b; }
  __device__ void write(int64_t o, Acc acc) const {
    if constexpr (std::is_integral_v<T>) {
      out[o] = static_cast<Out>(acc);
    } else {
      out[o] = from_accumulator<Out>(static_cast<Accumulator<Out>>(acc / divisor));
    }
  }
};

template <class T>
struct Extreme {
  using Acc = decltype(to_accumulator(T()));
  const T* x;
  T* out;
  bool largest;
  __device__ Acc start(int64_t, int64_t at) const { return to_accumulator(x[at]); }
  __device__ void add(Acc& acc, int64_t, T value) const { acc = (*this)(acc, to_accumulator(value)); }
  /// The branch is outside of the loop.
  __device__ void add_pack(Acc& acc, const Pack<T, kWide<T>>& pack) const requires(std::is_same_v<Acc, float>) {
    const auto wide = device::widen(pack);
    if (largest) {
#pragma unroll
      for (const float value : wide.at) acc = device::maximum(acc, value);
    } else {
#pragma unroll
      for (const float value : wide.at) acc = device::minimum(acc, value);
    }
  }
  __device__ Acc operator()(Acc a, Acc b) const {
    if constexpr (std::is_same_v<Acc, float>) return largest ? device::maximum(a, b) : device::minimum(a, b);
    return largest ? functor::Maximum{}(a, b) : functor::Minimum{}(a, b);
  }
  __device__ void write(int64_t o, Acc acc) const { out[o] = from_accumulator<T>(acc); }
};

/// Any element true, or all.
struct Truth {
  using Acc = bool;
  const bool* x;
  bool* out;
  bool all;
  __device__ Acc start(int64_t, int64_t) const { return all; }
  __device__ void add(Acc& acc, int64_t, bool value) const { acc = (*this)(acc, value); }
  __device__ Acc operator()(Acc a, Acc b) const { return all ? a && b : a || b; }
  __device__ void write(int64_t o, Acc acc) const { out[o] = acc; }
};

/// Which elements are not 0, dense.
Tensor truth_of(const Tensor& x) {
  if (x.dtype() == DType::Bool) return x;
  const Tensor truth = empty(x.shape(), {.dtype = DType::Bool, .device = x.device()});
  const Tensor zero = empty({1}, x.options());
  halo::fill(zero, 0);
  binary(BinaryOp::NotEqual, x, view::expand(view::reshape(zero, {}), x.shape()), truth);
  return truth;
}

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
  using Counted = std::conditional_t<std::is_same_v<T, bool>, int64_t, T>;  // a sum of masks counts
  const T* const in = x.data<T>();
  const auto run = [&](const auto& f) { fold_runs("reduce", x.device(), x.shape(), x.strides(), kept, f); };
  switch (op) {
    case ReduceOp::Sum: return run(Sum<T, Counted>{in, out.data<Counted>(), 1});
    case ReduceOp::Mean:
      if constexpr (!std::is_integral_v<T>) {
        return run(Sum<T, T>{in, out.data<T>(), static_cast<double>(x.numel() / out.numel())});
      }
      break;
    case ReduceOp::Max:
    case ReduceOp::Min: return run(Extreme<T>{in, out.data<T>(), op == ReduceOp::Max});
    case ReduceOp::LogSumExp: return log_sum_exp(x, kept, out);
    case ReduceOp::Norm: return euclidean_norm(x, kept, out);
    case ReduceOp::Any:
    case ReduceOp::All: break;
  }
  fail<InternalError>("reduce: unknown op");
}

}  // namespace

void reduce(ReduceOp op, const Tensor& x, int kept, const Tensor& out) {
  if (out.numel() == 0) return;
  if (x.numel() == 0) return halo::fill(out, of_nothing(op));
  if (op == ReduceOp::Any || op == ReduceOp::All) {
    const Tensor truth = truth_of(x);
    return fold_runs("reduce", x.device(), truth.shape(), truth.strides(), kept,
                     Truth{truth.data<bool>(), out.data<bool>(), op == ReduceOp::All});
  }
  if ((op == ReduceOp::Sum || op == ReduceOp::Mean) && is_floating_point(x.dtype())) {
    const double divisor = op == ReduceOp::Mean ? static_cast<double>(x.numel() / out.numel()) : 1;
    if (sum_columns(x, kept, divisor, out)) return;
  }
  const auto run = [&]<class T>(std::type_identity<T>) { reduce_as<T>(op, x, kept, out); };
  if (is_half(x.dtype())) return dispatch_floating("reduce", x.dtype(), run);
  dispatch_arithmetic_dtype("reduce", x.dtype(), run);
}

}  // namespace halo::cuda
