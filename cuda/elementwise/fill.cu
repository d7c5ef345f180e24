// Fills with one value, or with 0, 1, 2, ...
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

struct Position {
  __device__ int64_t operator()(int64_t i) const { return i; }
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

void arange(const Tensor& target) { generate("arange", Position{}, Elements<int64_t>{target}); }

}  // namespace halo::cuda
