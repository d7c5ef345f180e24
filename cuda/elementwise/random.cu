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
  __device__ Pack<T, kDraws> operator()(const PhiloxBlock& b) const {
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

/// c[0] + c[1] x + ...
template <int N>
__device__ __forceinline__ double polynomial(const double (&c)[N], double x) {
  double sum = c[N - 1];
#pragma unroll
  for (int k = N - 2; k >= 0; --k) sum = fma(sum, x, c[k]);
  return sum;
}

/// normal_of(numbers) to a relative 2^-29, which is enough for the shorter types: near-minimax polynomials, found by
/// interpolation in Chebyshev nodes, where the library's logarithm, root and cosine are right to the last bit.
__device__ __forceinline__ float short_normal_of(const PhiloxBlock& b) {
  // u = m 2^e with m in [1/2, 1): both parts of -ln u = -ln(1 - (1 - m)) - e ln 2 have one sign.
  const uint64_t n = ((uint64_t{b.v[1]} << 32 | b.v[0]) >> 11) + 1;
  const int zeros = __clzll(static_cast<long long>(n));
  const double m = __longlong_as_double(static_cast<long long>((n << zeros << 1 >> 12) | uint64_t{0x3fe} << 52));
  constexpr double kLog[] = {1.0000000005585645,  0.4999997365766085,  0.33335377495688745, 0.24938497851202446,
                             0.20941509464027364, 0.08349705856467714, 0.5937065787574219,  -1.4068853954058183,
                             3.320481402078754,   -3.753569531572858,  2.212235089101413};
  const double rest = 1 - m, exponents = static_cast<double>(zeros - 11);  // -e
  const double square = 2 * fmax(fma(rest, polynomial(kLog, rest), exponents * 0.69314718055994531), 0.0);
  float inverse;  // of the radius; a step of Newton's follows. Below 1e-37 the radius is 0.
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(fmaxf(static_cast<float>(square), 1e-37f)));
  const double y = static_cast<double>(inverse), first = square * y;
  const double radius = fma(fma(-first, first, square), 0.5 * y, first);
  // The angle is a quarter of turns and, exactly, x quarters more.
  const uint64_t a = (uint64_t{b.v[3]} << 32 | b.v[2]) & ~uint64_t{0x7ff};
  const unsigned quarter = static_cast<unsigned>((a + (uint64_t{1} << 61)) >> 62);
  const double x = static_cast<double>(static_cast<int64_t>(a - (uint64_t{quarter} << 62))) * 0x1p-62, z = x * x;
  constexpr double kSine[] = {1.570796326788107, -0.6459640961476592, 0.0796925827429702, -0.004681266367984746,
                              0.00015820652654033218};
  constexpr double kCosine[] = {0.9999999999525453, -1.233700540640265, 0.2536692037972255, -0.020860070409942245,
                                0.0009036298859740265};
  const double wave = (quarter & 1) != 0 ? x * polynomial(kSine, z) : polynomial(kCosine, z);
  const float value = static_cast<float>(radius * wave);
  return ((quarter + 1) & 2) != 0 ? -value : value;
}

template <class T>
struct Normal {
  static constexpr int kDraws = 1, kBlocks = 4;
  PhiloxState state;
  __device__ Pack<T, kDraws> operator()(const PhiloxBlock& b) const {
    if constexpr (std::is_same_v<T, double>) {
      return {normal_of(b)};
    } else {
      return {device::convert<T>(short_normal_of(b))};
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
  __device__ Pack<T, kDraws> operator()(const PhiloxBlock& b, const Pack<T, kDraws>& x) const {
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
  const int64_t first_block = int64_t{blockIdx.x} * (kMapThreads * F::kBlocks) + threadIdx.x;
  PhiloxBlock numbers[F::kBlocks];  // all before the first branch: the rounds' keys are found once
#pragma unroll
  for (int b = 0; b < F::kBlocks; ++b)
    numbers[b] = philox(f.state, static_cast<uint64_t>(first_block + b * kMapThreads));
#pragma unroll
  for (int b = 0; b < F::kBlocks; ++b) {
    const int64_t first = (first_block + b * kMapThreads) * F::kDraws;
    if (first >= count) return;
    const bool whole = first + F::kDraws <= count;
    const auto load = [&](const T* from) {
      if (whole && aligned(from)) return *reinterpret_cast<const Draws*>(from + first);
      Draws draws{};
      for (int k = 0; k < F::kDraws && first + k < count; ++k) draws.at[k] = from[first + k];
      return draws;
    };
    const Draws draws = f(numbers[b], load(in)...);
    if (whole && aligned(out)) {
      *reinterpret_cast<Draws*>(out + first) = draws;
    } else {
      for (int k = 0; k < F::kDraws && first + k < count; ++k) out[first + k] = draws.at[k];
    }
  }
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
