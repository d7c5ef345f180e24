// Random tensors and dropout: element i uses core/philox.h's draw i, as on the CPU.
#include <halo/core/cuda_backend.h>
#include <halo/core/view.h>
#include <halo/ops/dropout_backend.h>

#include "../device/convert.cuh"
#include "../device/map.cuh"
#include "../device/number.cuh"

namespace halo::cuda {
namespace {

/// Random numbers of type T from the draws of one Philox block, kDraws of them, and how many blocks a thread works at:
/// several have the schedule of the keys in common.
template <class T>
struct Uniform {
  static constexpr int kDraws = sizeof(T) == 8 ? 2 : 4, kBlocks = 4;
  PhiloxState state;
  __device__ Pack<T, kDraws> operator()(int64_t block) const {
    const PhiloxBlock b = philox(state, static_cast<uint64_t>(block));
    Pack<T, kDraws> pack;
#pragma unroll
    for (int k = 0; k < kDraws; ++k) {
      if constexpr (sizeof(T) == 8) {
        pack.at[k] = uniform64_of(b, k);
      } else {
        pack.at[k] = device::convert<T>(uniform_of(b.v[k]));
      }
    }
    return pack;
  }
};

template <class T>
struct Normal {
  static constexpr int kDraws = 1, kBlocks = 1;
  PhiloxState state;
  __device__ Pack<T, kDraws> operator()(int64_t i) const {
    const double value = random_normal(state, static_cast<uint64_t>(i));
    if constexpr (std::is_same_v<T, double>) {
      return {value};
    } else {
      return {device::convert<T>(static_cast<float>(value))};
    }
  }
};

/// Keeps x where the draw says so.
template <class T>
struct Dropout {
  static constexpr int kDraws = 4, kBlocks = 4;
  using Value = device::Accumulator<T>;
  PhiloxState state;
  float p;
  Value scale;
  __device__ Pack<T, kDraws> operator()(int64_t block, const Pack<T, kDraws>& x) const {
    const PhiloxBlock b = philox(state, static_cast<uint64_t>(block));
    Pack<T, kDraws> pack;
#pragma unroll
    for (int k = 0; k < kDraws; ++k) {
      const Value kept = device::to_accumulator(x.at[k]) * scale;
      pack.at[k] = device::from_accumulator<T>(uniform_of(b.v[k]) < p ? Value(0) : kept);
    }
    return pack;
  }
};

template <class T>
__device__ bool aligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

/// out = f(block, in...) for all elements.
template <class F, class T, class... In>
__global__ void __launch_bounds__(kMapThreads)
    draw_kernel(int64_t count, const __grid_constant__ F f, T* out, const In*... in) {
  using Draws = Pack<T, F::kDraws>;
  const auto one = [&](int64_t block) {
    const int64_t first = block * F::kDraws;
    if (first >= count) return;
    const bool whole = first + F::kDraws <= count;
    const auto load = [&](const T* from) {
      if (whole && aligned(from)) return *reinterpret_cast<const Draws*>(from + first);
      Draws draws{};
      for (int k = 0; k < F::kDraws && first + k < count; ++k) draws.at[k] = from[first + k];
      return draws;
    };
    const Draws draws = f(block, load(in)...);
    if (whole && aligned(out)) {
      *reinterpret_cast<Draws*>(out + first) = draws;
    } else {
      for (int k = 0; k < F::kDraws && first + k < count; ++k) out[first + k] = draws.at[k];
    }
  };
  const int64_t block = int64_t{blockIdx.x} * (kMapThreads * F::kBlocks) + threadIdx.x;
#pragma unroll
  for (int b = 0; b < F::kBlocks; ++b) one(block + b * kMapThreads);
}

template <class F, class T, class... In>
void draw(const char* name, const F& f, const Tensor& out, const In*... in) {
  constexpr int kElements = F::kDraws * F::kBlocks;  // of a thread
  const int64_t count = out.numel();
  if (count == 0) return;
  const DeviceScope scope(out.device());
  launch(name, draw_kernel<F, T, In...>, map_blocks((count + kElements - 1) / kElements), kMapThreads, 0,
         scope.stream(), count, f, out.data<T>(), in...);
}

}  // namespace

Tensor random(Distribution distribution, PhiloxState state, const Shape& shape, const TensorOptions& options) {
  if (!is_floating_point(options.dtype)) fail("random: dtype expected a floating type, got ", name(options.dtype));
  const Tensor out = empty(shape, options);
  dispatch_dtype(options.dtype, [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_integral_v<T>) {
      if (distribution == Distribution::Normal) {
        draw<Normal<T>, T>("random", Normal<T>{state}, out);
      } else {
        draw<Uniform<T>, T>("random", Uniform<T>{state}, out);
      }
    }
  });
  return out;
}

void dropout(double p, PhiloxState state, const Tensor& x, const Tensor& y) {
  const Tensor dense = view::dense(x);
  dispatch_floating("dropout", x.dtype(), [&]<class T>(std::type_identity<T>) {
    const auto scale = static_cast<device::Accumulator<T>>(1 / (1 - p));
    draw<Dropout<T>, T>("dropout", Dropout<T>{state, static_cast<float>(p), scale}, y,
                        static_cast<const T*>(dense.data<T>()));
  });
}

}  // namespace halo::cuda
