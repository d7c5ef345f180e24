// GELU of float32, built once for each instruction set: the library's erff and tanhf take one value at a time. Both
// forms are x F(x) with a distribution F: the normal one, or 1 / (1 + exp(-2 u)) with the cubic u of the tanh form.
//
// With t = 1 / (1 + 0.3 z), erfc(z) = exp(-z^2) t P(t) for z >= 0; P is our own fit of degree 8, relative error 2e-8.
// The exponential is that of the normal density, so that value and derivative need one.
#include <initializer_list>

#include "isa_vector.h"

namespace halo::cpu::HALO_ISA {
namespace {

using Floats = Vector<float>;
using Ints [[gnu::vector_size(kVectorBytes)]] = int32_t;

/// exp(a) for a <= 0: 2^n exp(r) with |r| <= ln(2) / 2; 0 below -87, where float32 would be subnormal. Keeps NaN.
Floats exp_of(Floats a) {
  constexpr float kRound = 12582912;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Floats limited = a < -87.0F ? broadcast(-87.0F) : a;
  const Floats shifted = limited * 1.44269504088896340736F + kRound, n = shifted - kRound;
  const Floats r = limited - n * 0.693359375F + n * 2.12194440054690583e-4F;  // ln(2) in two parts
  Floats sum = broadcast(1.0F / 5040);
  for (const float factor : {1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F, 1.0F, 1.0F}) sum = sum * r + factor;
  const Ints exponent = (reinterpret_cast<Ints>(shifted) + 127) << 23;  // what rounding added falls off the top
  return a < -87.0F ? Floats{} : sum * reinterpret_cast<Floats>(exponent);
}

/// A distribution at some x.
struct Distribution {
  Floats cumulative, density;
};

Distribution normal(Floats x) {
  const Floats size = x < 0.0F ? -x : x;
  const Floats bell = exp_of(-0.5F * x * x), t = 1.0F / (1.0F + 0.3F * 0.70710678118654752440F * size);
  Floats sum = broadcast(-0.12952285382304538F);
  for (const float factor : {0.48556298387419383F, -0.5122776706042618F, 0.5477196145893112F, -0.09465049043906132F,
                             0.21492598297387386F, 0.14833918222405312F, 0.17071522645103138F, 0.16918800516919053F}) {
    sum = sum * t + factor;
  }
  const Floats tail = 0.5F * bell * t * sum;
  return {x < 0.0F ? tail : 1.0F - tail, bell * 0.39894228040143267794F};
}

Distribution logistic(Floats x) {
  constexpr float kScale = 2 * 0.79788456080286535588F, kCubic = 0.044715F;
  const Floats size = x < 0.0F ? -x : x, square = x * x;
  const Floats tail = exp_of(-kScale * size * (1.0F + kCubic * square)), rest = 1.0F / (1.0F + tail);
  const Floats density = kScale * (1.0F + 3 * kCubic * square) * tail * rest * rest;
  return {x < 0.0F ? tail * rest : rest, tail == 0.0F ? Floats{} : density};  // the square may be infinite
}

/// Calls f(vectors of the operands) for all elements; the last vector is padded with zeros.
template <class F, class... In>
void for_each_vector(int64_t n, float* out, F&& f, const In*... in) {
  constexpr int kWidth = kLanes<float>;
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) store(out + i, f(load(in + i)...));
  if (i == n) return;
  const auto padded = [&](const float* from) {
    float lanes[kWidth] = {};
    for (int64_t lane = 0; lane < n - i; ++lane) lanes[lane] = from[i + lane];
    return load(lanes);
  };
  float lanes[kWidth];
  store(lanes, f(padded(in)...));
  for (int64_t lane = 0; lane < n - i; ++lane) out[i + lane] = lanes[lane];
}

template <Distribution distribution(Floats)>
void value(int64_t n, const float* x, float* y) {
  for_each_vector(
      n, y, [](Floats v) { return v * distribution(v).cumulative; }, x);
}

template <Distribution distribution(Floats)>
void derivative(int64_t n, const float* g, const float* x, float* dx) {
  const auto slope = [](Floats up, Floats v) {
    const Distribution at = distribution(v);
    return up == 0.0F ? Floats{} : up * (at.cumulative + v * at.density);
  };
  for_each_vector(n, dx, slope, g, x);
}

}  // namespace

const GeluKernels gelu{value<normal>, derivative<normal>}, gelu_tanh{value<logistic>, derivative<logistic>};

}  // namespace halo::cpu::HALO_ISA
