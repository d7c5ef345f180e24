// Elementwise loops over tensors of one shape and any strides.
#pragma once

#include <halo/core/strided.h>
#include <halo/core/tensor.h>

#include <utility>
#include <vector>

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

/// out = f(in...) for float32 tensors of one shape and a function of whole lines, f(n, in..., out), whose values must
/// not depend on the strides: lines that are not dense are copied.
template <class F, class... In>
void map_lines(const Tensor& out, F f, const In&... in) {
  if (out.numel() == 0) return;
  constexpr std::size_t kOperands = 1 + sizeof...(In);
  float* const base[kOperands] = {out.data<float>(), in.template data<float>()...};
  StridedLoop<kOperands>(out.shape(), {out.strides(), in.strides()...})
      .for_each_run([&](const auto& at, const auto& step, int64_t n) {
        std::vector<float> copies[kOperands];
        float* line[kOperands];
        for (std::size_t k = 0; k < kOperands; ++k) {
          line[k] = base[k] + at[k];
          if (step[k] == 1) continue;
          copies[k].resize(static_cast<std::size_t>(n));
          for (int64_t i = 0; k > 0 && i < n; ++i) copies[k][static_cast<std::size_t>(i)] = line[k][i * step[k]];
          line[k] = copies[k].data();
        }
        [&]<std::size_t... K>(std::index_sequence<K...>) { f(n, line[1 + K]..., line[0]); }
        (std::make_index_sequence<sizeof...(In)>());
        for (int64_t i = 0; step[0] != 1 && i < n; ++i) base[0][at[0] + i * step[0]] = line[0][i];
      });
}

}  // namespace halo::cpu
