// Fills with one value.
#include <halo/core/cuda_backend.h>
#include <halo/core/scalar.h>

#include <bit>

#include "../device/map.cuh"

namespace halo::cuda {
namespace {

template <class T>
struct Constant {
  T value;
  __device__ T operator()() const { return value; }
};

}  // namespace

void fill(const Tensor& target, const Scalar& value) {
  dispatch_dtype(target.dtype(), [&]<class T>(std::type_identity<T>) {
    dispatch_size(target.dtype(), [&]<class Bits>(std::type_identity<Bits>) {
      if constexpr (sizeof(Bits) == sizeof(T)) {
        map("fill", Constant<Bits>{std::bit_cast<Bits>(value.as<T>())}, Elements<Bits>{target});
      }
    });
  });
}

}  // namespace halo::cuda
