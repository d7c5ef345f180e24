// Copies with conversion, and flips.
#include <halo/core/cuda_backend.h>
#include <halo/ops/flip_backend.h>

#include "../device/convert.cuh"
#include "../device/map.cuh"
#include "transpose.h"

namespace halo::cuda {
namespace {

struct Identity {
  template <class T>
  __device__ T operator()(T value) const {
    return value;
  }
};

template <class To>
struct Convert {
  template <class From>
  __device__ To operator()(From value) const {
    return device::convert<To>(value);
  }
};

}  // namespace

void copy_elements(const Tensor& source, const Tensor& target) {
  if (source.dtype() == target.dtype()) {
    if (copy_transposed(source, target)) return;
    return dispatch_size(source.dtype(), [&]<class T>(std::type_identity<T>) {
      map("copy", Identity{}, Elements<T>{target}, Elements<T>{source});
    });
  }
  dispatch_dtype(target.dtype(), [&]<class To>(std::type_identity<To>) {
    dispatch_dtype(source.dtype(), [&]<class From>(std::type_identity<From>) {
      if constexpr (!std::is_same_v<To, From>) {
        map("convert", Convert<To>{}, Elements<To>{target}, Elements<From>{source});
      }
    });
  });
}

void flip(const Tensor& x, const Shape& dims, const Tensor& y) {
  if (y.numel() == 0) return;
  Shape backward = x.strides();
  int64_t last = 0;  // where the walk begins: the far end of every flipped axis
  for (int64_t dim : dims) {
    const int axis = static_cast<int>(dim);
    last += (x.shape()[axis] - 1) * x.strides()[axis];
    backward[axis] = -x.strides()[axis];
  }
  dispatch_size(x.dtype(), [&]<class T>(std::type_identity<T>) {
    map_over("flip", y.device(), StridedLoop<2>(y.shape(), {y.strides(), backward}), Identity{},
             static_cast<T*>(y.data()), static_cast<const T*>(x.data()) + last);
  });
}

}  // namespace halo::cuda
