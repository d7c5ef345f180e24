// Random tensors and dropout: element i uses core/philox.h's draw i, as on the CPU.
#include <halo/core/cuda_backend.h>
#include <halo/core/view.h>
#include <halo/ops/dropout_backend.h>

#include "../device/convert.cuh"
#include "../device/map.cuh"

namespace halo::cuda {
namespace {

template <class T>
struct Uniform {
  PhiloxState state;
  __device__ T operator()(int64_t i) const {
    if constexpr (std::is_same_v<T, double>) {
      return random_uniform64(state, static_cast<uint64_t>(i));
    } else {
      return device::convert<T>(random_uniform(state, static_cast<uint64_t>(i)));
    }
  }
};

template <class T>
struct Normal {
  PhiloxState state;
  __device__ T operator()(int64_t i) const {
    const double value = random_normal(state, static_cast<uint64_t>(i));
    if constexpr (std::is_same_v<T, double>) {
      return value;
    } else {
      return device::convert<T>(static_cast<float>(value));
    }
  }
};

template <class T>
struct Dropout {
  PhiloxState state;
  float p;
  T scale;
  __device__ T operator()(int64_t i, T x) const {
    return random_uniform(state, static_cast<uint64_t>(i)) < p ? T(0) : x * scale;
  }
};

}  // namespace

Tensor random(Distribution distribution, PhiloxState state, const Shape& shape, const TensorOptions& options) {
  if (!is_floating_point(options.dtype)) fail("random: dtype expected a floating type, got ", name(options.dtype));
  const Tensor out = empty(shape, options);
  dispatch_dtype(options.dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>) {
      if (distribution == Distribution::Normal) {
        generate<true>("random", Normal<T>{state}, Elements<T>{out});
      } else {
        generate("random", Uniform<T>{state}, Elements<T>{out});
      }
    }
  });
  return out;
}

void dropout(double p, PhiloxState state, const Tensor& x, const Tensor& y) {
  const Tensor dense = view::dense(x);
  dispatch_float("dropout", x.dtype(), [&]<class T>(std::type_identity<T>) {
    generate("dropout", Dropout<T>{state, static_cast<float>(p), static_cast<T>(1 / (1 - p))}, Elements<T>{y},
             Elements<T>{dense});
  });
}

}  // namespace halo::cuda
