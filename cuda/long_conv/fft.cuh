// Radix passes of the long convolution's transforms, on values that sit in a thread's registers.
//
// The algebra. A sequence a[0..N) is the polynomial a(z) = sum a[n] z^n, and products are taken modulo z^N - i. With
// real factors of degree below N the product's low half comes out in the real part and its high half, times i, in the
// imaginary part: a linear convolution of two real rows of length N from one complex transform of length N, with no
// zero padding, no unpacking of a packed spectrum, and no second row in the transform.
//
// Forward (split): z^S - e(theta) = (z^(S/2) - e(theta/2)) (z^(S/2) + e(theta/2)), e(x) = exp(2 pi i x). One step of it
// is the butterfly a + w b, a - w b with w = e(theta/2), the same w for a whole block; the two halves are again blocks,
// with theta/2 and theta/2 + 1/2. Starting from theta0 the block b of level l has theta = (theta0 + reverse_l(b)) /
// 2^l, so the values end in bit-reversed order of frequency. Nothing puts them in order: products are taken where they
// lie.
//
// Inverse (merge): decimation in time from the bit-reversed order, again butterflies a + w b, a - w b, with
// w = e(-p/S) for position p of a block of S. It leaves sum_k a_k e(-k n/N); the caller multiplies by e(-theta0 n/N) /
// N.
//
// A radix 2^Q pass does Q levels in registers. Of its twiddles only one a level is loaded (w[level]); the others differ
// from it by constants (16 values) and by factors of i (free).
#pragma once

#include <utility>

#include "complex.cuh"

namespace halo::cuda::long_conv {

/// exp(2 pi i num / den) for constants, by the Taylor series on [-pi, pi].
__host__ __device__ constexpr double cos_turns(int num, int den) {
  constexpr double kTwoPi = 6.283185307179586476925286766559;
  double turns = static_cast<double>(num % den) / den;
  if (turns > 0.5) turns -= 1;
  if (turns < -0.5) turns += 1;
  const double x2 = kTwoPi * turns * kTwoPi * turns;
  double sum = 0, term = 1;
  for (int k = 1; k < 40; k += 2) {
    sum += term;
    term *= -x2 / (k * (k + 1));
  }
  return sum;
}

template <int Num, int Den, class Real>
__device__ __forceinline__ Complex<Real> root() {
  constexpr double re = cos_turns(4 * Num, 4 * Den), im = cos_turns(4 * Num - Den, 4 * Den);
  return {static_cast<Real>(re), static_cast<Real>(im)};
}

/// The lowest `bits` bits of `x` in reverse order.
__host__ __device__ constexpr int reverse_bits(int x, int bits) {
  int result = 0;
  for (int i = 0; i < bits; ++i) result |= ((x >> i) & 1) << (bits - 1 - i);
  return result;
}

template <int I>
struct Index {
  static constexpr int value = I;
};

/// f(Index<0>{}), ..., f(Index<N - 1>{}): a loop whose index is a constant.
template <int N, class F>
__device__ __forceinline__ void static_for(F&& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (f(Index<I>{}), ...); }
  (std::make_integer_sequence<int, N>{});
}

/// (a, b) <- (a + w b, a - w b) in six fused operations instead of ten plain ones: a - w b = 2 a - (a + w b).
template <class Real>
__device__ __forceinline__ void butterfly(Complex<Real>& a, Complex<Real>& b, Complex<Real> w) {
  const Complex<Real> sum{fma(-w.im, b.im, fma(w.re, b.re, a.re)), fma(w.im, b.re, fma(w.re, b.im, a.im))};
  b = {fma(Real(2), a.re, -sum.re), fma(Real(2), a.im, -sum.im)};
  a = sum;
}

/// (a, b) <- (a + b, a - b)
template <class Real>
__device__ __forceinline__ void butterfly_one(Complex<Real>& a, Complex<Real>& b) {
  const Complex<Real> t = b;
  b = {a.re - t.re, a.im - t.im};
  a = {a.re + t.re, a.im + t.im};
}

/// (a, b) <- (a - i b, a + i b)
template <class Real>
__device__ __forceinline__ void butterfly_minus_i(Complex<Real>& a, Complex<Real>& b) {
  const Complex<Real> t = b;
  b = {a.re - t.im, a.im + t.re};
  a = {a.re + t.im, a.im - t.re};
}

/// Forward radix 2^Q pass on v[0..2^Q), the elements of one block at equal distances. w[l] = e(theta / 2^(l+1)).
template <int Q, class Real>
__device__ __forceinline__ void split_pass(Complex<Real>* v, const Complex<Real>* w) {
  static_for<Q>([&](auto level) {
    constexpr int l = decltype(level)::value, half = 1 << (Q - 1 - l), pairs = l == 0 ? 1 : 1 << (l - 1);
    static_for<pairs>([&](auto pair) {
      constexpr int p = decltype(pair)::value;
      Complex<Real> t = w[l];
      if constexpr (p > 0) t = t * root<reverse_bits(p, l - 1), 1 << (l + 1), Real>();
#pragma unroll
      for (int k = 0; k < half; ++k) butterfly(v[4 * p * half + k], v[4 * p * half + half + k], t);
      if constexpr (l > 0) {
        const Complex<Real> it{-t.im, t.re};
#pragma unroll
        for (int k = 0; k < half; ++k) butterfly(v[(4 * p + 2) * half + k], v[(4 * p + 3) * half + k], it);
      }
    });
  });
}

/// split_pass for the whole of z^N - i (theta = 1/4), where every twiddle is a constant: fewer operations, and fewer
/// register reads, which is what bounds the other passes. `real` says that all imaginary parts are zero.
template <int Q, class Real>
__device__ __forceinline__ void split_pass_at_root(Complex<Real>* v, bool real) {
  constexpr int kHalf = 1 << (Q - 1);
  constexpr double kRootOfHalf = cos_turns(1, 8);
  constexpr Real w = static_cast<Real>(kRootOfHalf);  // e(1/8) = w + i w
  if (real) {
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
      const Real a = v[k].re, b = v[k + kHalf].re;
      v[k] = {fma(w, b, a), w * b};
      v[k + kHalf] = {fma(-w, b, a), -w * b};
    }
  } else {
#pragma unroll
    for (int k = 0; k < kHalf; ++k) butterfly(v[k], v[k + kHalf], Complex<Real>{w, w});
  }
  static_for<Q - 1>([&](auto level) {
    constexpr int l = decltype(level)::value + 1, half = 1 << (Q - 1 - l);
    static_for<1 << l>([&](auto block) {
      constexpr int b = decltype(block)::value;
#pragma unroll
      for (int k = 0; k < half; ++k) {
        butterfly(v[2 * b * half + k], v[(2 * b + 1) * half + k], root<1 + 4 * reverse_bits(b, l), 8 << l, Real>());
      }
    });
  });
}

/// Inverse radix 2^Q pass on v[0..2^Q), elements at positions o + e s0 of a block of 2^Q s0; of its levels those from
/// Begin to End. w[l] = e(-o / (2^(l+1) s0)).
template <int Q, int Begin = 0, int End = Q, class Real>
__device__ __forceinline__ void merge_pass(Complex<Real>* v, const Complex<Real>* w) {
  static_for<End - Begin>([&](auto level) {
    constexpr int l = Begin + decltype(level)::value, half = 1 << l, count = half == 1 ? 1 : half / 2;
    static_for<count>([&](auto position) {
      constexpr int m = decltype(position)::value;
      Complex<Real> t = w[l];
      if constexpr (m > 0) t = t * root<-m, 2 * half, Real>();
#pragma unroll
      for (int e = m; e < (1 << Q); e += 2 * half) butterfly(v[e], v[e + half], t);
      if constexpr (half > 1) {
        const Complex<Real> minus_it{t.im, -t.re};
#pragma unroll
        for (int e = m + half / 2; e < (1 << Q); e += 2 * half) butterfly(v[e], v[e + half], minus_it);
      }
    });
  });
}

/// The last merge pass of z^N - i, with the factor e(-n / (4 N)) that undoes the i: `weight` is its value at position
/// o, and n = o + e N / 2^Q. Imaginary parts are made only if `Both`.
template <int Q, bool Both, class Real>
__device__ __forceinline__ void merge_last_pass(Complex<Real>* v, Complex<Real>* w, Complex<Real> weight) {
  merge_pass<Q, 0, Q - 1>(v, w);
#pragma unroll
  for (int e = 0; e < 1 << (Q - 1); ++e) v[e] = v[e] * weight;  // (a + w b) weight = a weight + (w weight) b
  w[Q - 1] = w[Q - 1] * weight;
  merge_pass<Q, Q - 1, Q>(v, w);
  static_for<1 << Q>([&](auto element) {
    constexpr int e = decltype(element)::value;
    const Complex<Real> z = v[e], c = root<-e, 4 << Q, Real>();
    v[e].re = fma(-z.im, c.im, z.re * c.re);
    if constexpr (Both) v[e].im = fma(z.im, c.re, z.re * c.im);
  });
}

/// merge_pass at o = 0, where every twiddle is a constant.
template <int Q, class Real>
__device__ __forceinline__ void merge_pass_at_origin(Complex<Real>* v) {
  static_for<Q>([&](auto level) {
    constexpr int half = 1 << decltype(level)::value;
    static_for<half>([&](auto position) {
      constexpr int m = decltype(position)::value;
#pragma unroll
      for (int e = m; e < (1 << Q); e += 2 * half) {
        if constexpr (m == 0) {
          butterfly_one(v[e], v[e + half]);
        } else if constexpr (2 * m == half) {
          butterfly_minus_i(v[e], v[e + half]);
        } else {
          butterfly(v[e], v[e + half], root<-m, 2 * half, Real>());
        }
      }
    });
  });
}

}  // namespace halo::cuda::long_conv
