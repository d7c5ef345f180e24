// Complex numbers, and the ways in which the long convolution's kernels load and store them.
#pragma once

#include <cuda_runtime.h>

namespace halo::cuda::long_conv {

/// A complex number that loads and stores as one access.
template <class Real>
struct alignas(2 * sizeof(Real)) Complex {
  Real re, im;
};

template <class Real>
__device__ __forceinline__ Complex<Real> operator*(Complex<Real> a, Complex<Real> b) {
  return {fma(-a.im, b.im, a.re * b.re), fma(a.im, b.re, a.re * b.im)};
}

/// a * conj(b)
template <class Real>
__device__ __forceinline__ Complex<Real> times_conj(Complex<Real> a, Complex<Real> b) {
  return {fma(a.im, b.im, a.re * b.re), fma(-a.re, b.im, a.im * b.re)};
}

template <class Real>
struct PairOf;
template <>
struct PairOf<float> {
  using Type = float2;
};
template <>
struct PairOf<double> {
  using Type = double2;
};

template <class Real>
__device__ __forceinline__ const typename PairOf<Real>::Type* as_pair(const Complex<Real>* p) {
  return reinterpret_cast<const typename PairOf<Real>::Type*>(p);
}

/// Of a table that no one writes while the kernel runs.
template <class Real>
__device__ __forceinline__ Complex<Real> load_constant(const Complex<Real>* p) {
  const auto pair = __ldg(as_pair(p));
  return {pair.x, pair.y};
}

/// From the second-level cache, past the first, which is left to the tables.
template <class Real>
__device__ __forceinline__ Complex<Real> load_far(const Complex<Real>* p) {
  const auto pair = __ldcg(as_pair(p));
  return {pair.x, pair.y};
}

/// Read once, soon never again.
template <class Real>
__device__ __forceinline__ Complex<Real> load_streaming(const Complex<Real>* p) {
  const auto pair = __ldcs(as_pair(p));
  return {pair.x, pair.y};
}

/// Not read again by this kernel.
template <class Real>
__device__ __forceinline__ void store_streaming(Complex<Real>* p, Complex<Real> value) {
  using Pair = typename PairOf<Real>::Type;
  __stcs(reinterpret_cast<Pair*>(p), Pair{value.re, value.im});
}

}  // namespace halo::cuda::long_conv
