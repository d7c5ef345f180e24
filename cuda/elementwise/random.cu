// Random tensors and dropout: element i uses core/philox.h's draw i, as on the CPU.
#include <halo/core/cuda_backend.h>
#include <halo/core/half_uniform.h>
#include <halo/core/view.h>
#include <halo/ops/dropout_backend.h>

#include <cstring>

#include "../device/convert.cuh"
#include "../device/map.cuh"
#include "../device/number.cuh"

namespace halo::cuda {
namespace {

/// Two numbers of a half type in a word, rounded toward zero.
template <class T>
__device__ __forceinline__ uint32_t pack_toward_zero(float low, float high) {
  uint32_t word;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rz.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

/// Random numbers of type T from the draws of one Philox block, kDraws of them, and how many blocks a thread works at:
/// several have the schedule of the keys in common.
template <class T>
struct Uniform {
  static constexpr int kDraws = kWide<T>, kBlocks = 4;
  PhiloxState state;
  __device__ Pack<T, kDraws> operator()(const PhiloxBlock& b) const {
    Pack<T, kDraws> pack;
    if constexpr (sizeof(T) == 2) {
      uint32_t words[kDraws / 2];
#pragma unroll
      for (int k = 0; k < kDraws / 2; ++k) {
        words[k] = pack_toward_zero<T>(uniform16_of(b, 2 * k), uniform16_of(b, 2 * k + 1));
      }
      memcpy(pack.at, words, sizeof(words));
    } else {
#pragma unroll
      for (int k = 0; k < kDraws; ++k) {
        if constexpr (sizeof(T) == 8) {
          pack.at[k] = uniform64_of(b, k);
        } else {
          pack.at[k] = uniform_of(b.v[k]);
        }
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
  // cos(2 pi a) = sin(2 pi x), x = |a - 1/2| - 1/4, which is exact: a has 53 bits. Numbers of 32 bits become float64 as
  // the last places of 2^52 and 2^84.
  const double high = __hiloint2double(0x45300000, static_cast<int>(b.v[3])) - (0x1p84 + 0x1p63 + 0x1p52);
  const double a = high + __hiloint2double(0x43300000, static_cast<int>(b.v[2] & ~0x7ffu));  // 2^64 (a - 1/2)
  const double x = fma(fabs(a), 0x1p-64, -0.25);
  constexpr double kSine[] = {6.283185307072264,  -41.341702116744,   81.60522617402967,
                              -76.70427987604262, 42.009779303153906, -14.393966295455941};
  return static_cast<float>(radius * (x * polynomial(kSine, x * x)));
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

/// out = f(block, in...) for kBlocks blocks, `first_block` and those a block of threads apart. `kWhole`: all their
/// elements are there, in packs.
template <bool kWhole, class F, class T, class... In>
__device__ __forceinline__ void draw_blocks(int64_t first_block, int64_t count, const F& f, T* out, const In*... in) {
  constexpr int kDraws = F::kDraws;
  struct Draws {
    Pack<T, kDraws> of[F::kBlocks];
  };
  const auto each = [&](const auto& use) {
#pragma unroll
    for (int b = 0; b < F::kBlocks; ++b) use(b, (first_block + b * kMapThreads) * kDraws);
  };
  const auto load = [&](const T* from) {
    Draws draws{};
    each([&](int b, int64_t first) {
      if constexpr (kWhole) {
        draws.of[b] = *reinterpret_cast<const Pack<T, kDraws>*>(from + first);
      } else {
        for (int k = 0; k < kDraws && first + k < count; ++k) draws.of[b].at[k] = from[first + k];
      }
    });
    return draws;
  };
  const auto draw_all = [&](const auto&... sources) {
    PhiloxBlock numbers[F::kBlocks];  // all before the first use: the rounds' keys are found once
#pragma unroll
    for (int b = 0; b < F::kBlocks; ++b)
      numbers[b] = philox(f.state, static_cast<uint64_t>(first_block + b * kMapThreads));
    Draws draws;
#pragma unroll
    for (int b = 0; b < F::kBlocks; ++b) draws.of[b] = f(numbers[b], sources.of[b]...);
    return draws;
  };
  const Draws draws = draw_all(load(in)...);
  each([&](int b, int64_t first) {
    if constexpr (kWhole) {
      *reinterpret_cast<Pack<T, kDraws>*>(out + first) = draws.of[b];
    } else {
      for (int k = 0; k < kDraws && first + k < count; ++k) out[first + k] = draws.of[b].at[k];
    }
  });
}

/// out = f(block, in...) for all elements; `packs`: all begin on the alignment of a pack.
template <class F, class T, class... In>
__global__ void __launch_bounds__(kMapThreads)
    draw_kernel(int64_t count, bool packs, const __grid_constant__ F f, T* out, const In*... in) {
  constexpr int kBlocks = kMapThreads * F::kBlocks;  // of a block of threads
  const int64_t begin = int64_t{blockIdx.x} * kBlocks;
  if (packs && (begin + kBlocks) * F::kDraws <= count) {
    draw_blocks<true>(begin + threadIdx.x, count, f, out, in...);
  } else {
    draw_blocks<false>(begin + threadIdx.x, count, f, out, in...);
  }
}

template <class F, class T, class... In>
void draw(const char* name, const F& f, const Tensor& out, const In*... in) {
  constexpr int kElements = F::kDraws * F::kBlocks;  // of a thread
  const int64_t count = out.numel();
  if (count == 0) return;
  const bool packs = (is_aligned<T, F::kDraws>(out.data<T>()) && ... && is_aligned<T, F::kDraws>(in));
  const DeviceScope scope(out.device());
  launch(name, draw_kernel<F, T, In...>, map_blocks((count + kElements - 1) / kElements), kMapThreads, 0,
         scope.stream(), count, packs, f, out.data<T>(), in...);
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
