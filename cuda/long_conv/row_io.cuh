// Reading and writing real rows in any storage type, a fixed number of elements a thread at a fixed distance.
//
// The storage type is a run-time branch around each unrolled loop, not a template argument of the kernels: the loops
// are short beside a transform, and one kernel then serves float32, bfloat16 and float16.
#pragma once

#include <halo/core/dtype.h>

#include <cstdint>
#include <type_traits>

#include "fft.cuh"
#include "kernels.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace halo::cuda::long_conv {

/// The same pointer, computed once: otherwise the compiler computes it again for each of many predicated accesses.
template <class T>
__device__ __forceinline__ T* pinned(T* p) {
  asm volatile("" : "+l"(p));
  return p;
}

/// Storage that is the computing type itself. Rows are read and written once: streaming accesses leave the second-level
/// cache to the spectra.
template <class Real>
struct PlainAccess {
  __device__ const Real* at(const void* base, int64_t i) const { return pinned(static_cast<const Real*>(base) + i); }
  __device__ Real* at(void* base, int64_t i) const { return pinned(static_cast<Real*>(base) + i); }
  __device__ Real load(const Real* p, bool there = true) const { return there ? __ldcs(p) : Real(0); }
  __device__ void store(Real* p, Real value) const { __stcs(p, value); }
};

/// bfloat16 or float16.
struct HalfAccess {
  bool bfloat;
  __device__ const unsigned short* at(const void* base, int64_t i) const {
    return pinned(static_cast<const unsigned short*>(base) + i);
  }
  __device__ unsigned short* at(void* base, int64_t i) const { return pinned(static_cast<unsigned short*>(base) + i); }
  __device__ float load(const unsigned short* p, bool there = true) const {
    const unsigned short bits = there ? __ldcs(p) : 0;
    return bfloat ? __bfloat162float(__ushort_as_bfloat16(bits)) : __half2float(__ushort_as_half(bits));
  }
  __device__ void store(unsigned short* p, float value) const {
    __stcs(p, bfloat ? __bfloat16_as_ushort(__float2bfloat16_rn(value)) : __half_as_ushort(__float2half_rn(value)));
  }
};

template <class Real, class F>
__device__ __forceinline__ void with_access(DType dtype, F&& f) {
  if constexpr (std::is_same_v<Real, float>) {
    if (dtype != DType::Float32) {
      f(HalfAccess{dtype == DType::BFloat16});
      return;
    }
  }
  f(PlainAccess<Real>{});
}

/// E elements of a row at distance `step`, the first at element `offset` of the tensor. Of the row `left` elements
/// remain from there on; what lies beyond reads as zero and is not written.
struct RowSpan {
  int64_t offset;
  int step, left;
};

/// x[e] = values * gate.
template <int E, class Real>
__device__ __forceinline__ void load_row(Real (&x)[E], const RowIn& in, DType dtype, const RowSpan& span) {
  with_access<Real>(dtype, [&](auto access) {
    const auto load = [&](auto there) {
      const auto* values = access.at(in.values, span.offset);
#pragma unroll
      for (int e = 0; e < E; ++e) x[e] = access.load(values + e * span.step, there(e));
      if (in.gate == nullptr) return;
      const auto* gate = access.at(in.gate, span.offset);
#pragma unroll
      for (int e = 0; e < E; ++e) x[e] *= access.load(gate + e * span.step, there(e));
    };
    if (span.left > (E - 1) * span.step) {
      load([](int) { return true; });
    } else {
      load([&](int e) { return e * span.step < span.left; });
    }
  });
}

/// Writes r = v[e].re as `out` says; v is used up.
template <int E, class Real>
__device__ __forceinline__ void store_row(Complex<Real> (&v)[E], const RowOut& out, DType dtype, const RowSpan& span) {
  with_access<Real>(dtype, [&](auto access) {
    if (out.product) {
      auto* product = access.at(out.product, span.offset);
      const auto* factor = access.at(out.factor, span.offset);
#pragma unroll
      for (int e = 0; e < E; ++e) {
        const bool there = e * span.step < span.left;
        const Real value = v[e].re * access.load(factor + e * span.step, there);
        if (there) access.store(product + e * span.step, value);
      }
    }
    if (out.out == nullptr) return;
    if (out.scale) {
      const auto* scale = access.at(out.scale, span.offset);
#pragma unroll
      for (int e = 0; e < E; ++e) v[e].re *= access.load(scale + e * span.step, e * span.step < span.left);
    }
    auto* to = access.at(out.out, span.offset);
#pragma unroll
    for (int e = 0; e < E; ++e) {
      if (e * span.step < span.left) access.store(to + e * span.step, v[e].re);
    }
  });
}

/// The filter as a polynomial modulo z^points - i: lag m >= 0 (tap center + m) is the real part of point m; lag m < 0
/// is z^m = -i z^(points + m). Lags that reach beyond the input are left out; the skip weight belongs to lag 0.
template <int E, class Real>
__device__ __forceinline__ void load_filter(Complex<Real> (&v)[E], const Filter& filter, const Sizes& sizes, int64_t h,
                                            int first, int step) {
  const int64_t channel = sizes.first_channel + h;
  const int taps = min(sizes.length, sizes.kernel - sizes.center);        // of lag 0 and more
  const int back = sizes.points() - min(sizes.center, sizes.length - 1);  // first point of negative lag
  with_access<Real>(sizes.weight_dtype, [&](auto access) {
    const auto* weight = access.at(filter.weight, channel * sizes.kernel + sizes.center);
#pragma unroll
    for (int e = 0; e < E; ++e) {
      const int n = first + e * step;
      v[e] = {access.load(weight + n, n < taps), Real(0)};
    }
    if (sizes.center > 0) {
#pragma unroll
      for (int e = 0; e < E; ++e) {
        const int n = first + e * step;
        v[e].im = -access.load(weight + (n - sizes.points()), n >= back);
      }
    }
    if (first == 0 && filter.skip) v[0].re += access.load(access.at(filter.skip, channel));
  });
}

/// The reverse of load_filter for its gradient; `sums` is the row [K] of one channel and chunk.
template <int E, class Real>
__device__ __forceinline__ void store_filter_grad(const Complex<Real> (&v)[E], Real* sums, const Sizes& sizes,
                                                  int first, int step) {
  const int taps = min(sizes.length, sizes.kernel - sizes.center);
  const int back = sizes.points() - min(sizes.center, sizes.length - 1);
  Real* lag0 = sums + sizes.center;
#pragma unroll
  for (int e = 0; e < E; ++e) {
    const int n = first + e * step;
    if (n < taps) lag0[n] = v[e].re;
    if (n >= back) lag0[n - sizes.points()] = -v[e].im;
  }
}

}  // namespace halo::cuda::long_conv
