// Elementwise loops over tensors of one shape and any strides.
#pragma once

#include <halo/core/strided.h>
#include <halo/core/tensor.h>

namespace halo::cpu {

/// out[i] = f(a[i]) for tensors of one shape. Dense runs get a loop the compiler can vectorise.
template <class Out, class A, class F>
void map1(const Tensor& out, const Tensor& a, F f) {
  if (out.numel() == 0) return;
  Out* const po = out.data<Out>();
  const A* const pa = a.data<A>();
  StridedLoop<2>(out.shape(), {out.strides(), a.strides()})
      .for_each_run([&](const auto& at, const auto& step, int64_t n) {
        Out* o = po + at[0];
        const A* x = pa + at[1];
        if (step[0] == 1 && step[1] == 1) {
          for (int64_t i = 0; i < n; ++i) o[i] = f(x[i]);
        } else {
          for (int64_t i = 0; i < n; ++i) o[i * step[0]] = f(x[i * step[1]]);
        }
      });
}

/// out[i] = f(a[i], b[i]).
template <class Out, class A, class B, class F>
void map2(const Tensor& out, const Tensor& a, const Tensor& b, F f) {
  if (out.numel() == 0) return;
  Out* const po = out.data<Out>();
  const A* const pa = a.data<A>();
  const B* const pb = b.data<B>();
  StridedLoop<3>(out.shape(), {out.strides(), a.strides(), b.strides()})
      .for_each_run([&](const auto& at, const auto& step, int64_t n) {
        Out* o = po + at[0];
        const A* x = pa + at[1];
        const B* y = pb + at[2];
        if (step[0] == 1 && step[1] == 1 && step[2] == 1) {
          for (int64_t i = 0; i < n; ++i) o[i] = f(x[i], y[i]);
        } else {
          for (int64_t i = 0; i < n; ++i) o[i * step[0]] = f(x[i * step[1]], y[i * step[2]]);
        }
      });
}

}  // namespace halo::cpu
