// Where the largest or smallest element of each row is.
#include <halo/ops/binary_functors.h>
#include <halo/ops/sort_backend.h>

#include "fold_runs.cuh"

namespace halo::cuda {
namespace {

/// A NaN beats every number; among equals the lower index wins.
template <class T>
struct ArgExtreme {
  struct Acc {
    T value;
    int64_t at;
  };
  const T* x;
  int64_t* indices;
  int64_t length;
  bool largest;
  __device__ Acc start(int64_t, int64_t at) const { return {x[at], at}; }
  __device__ void add(Acc& acc, int64_t at, T value) const { acc = (*this)(acc, {value, at}); }
  __device__ Acc operator()(const Acc& a, const Acc& b) const {
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan) return a_nan ? a : b;
    if (a_nan || a.value == b.value) return a.at < b.at ? a : b;
    return (a.value > b.value) == largest ? a : b;
  }
  __device__ void write(int64_t o, const Acc& acc) const { indices[o] = acc.at - o * length; }
};

}  // namespace

void arg_extreme(const Tensor& x, bool largest, const Tensor& indices) {
  if (indices.numel() == 0) return;
  dispatch_arithmetic_dtype("arg_extreme", x.dtype(), [&]<class T>(std::type_identity<T>) {
    fold_runs("arg_extreme", x.device(), x.shape(), x.strides(), x.rank() - 1,
              ArgExtreme<T>{x.data<T>(), indices.data<int64_t>(), x.size(-1), largest});
  });
}

}  // namespace halo::cuda
