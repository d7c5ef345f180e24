// gelu(x + bias), and its gradients with that of the bias summed on the side.
#include <halo/core/copy.h>
#include <halo/ops/bias_gelu_backend.h>
#include <halo/ops/unary_functors.h>

#include "../device/column_cover.cuh"
#include "../reduce/partials.h"

namespace halo::cuda {
namespace {

template <class Gelu, class T>
__global__ void __launch_bounds__(kMapThreads)
    forward_kernel(const __grid_constant__ ColumnCover cover, Gelu gelu, const T* x, const T* bias, T* y) {
  const Pack<T> b = cover.load(bias);
  cover.each_row([&](int64_t row) {
    Pack<T> v = cover.load(x + row);
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) v.at[k] = gelu.value(v.at[k] + b.at[k]);
    cover.store(v, y + row);
  });
}

/// partials: [parts, columns].
template <class Gelu, class T>
__global__ void __launch_bounds__(kMapThreads)
    backward_kernel(const __grid_constant__ ColumnCover cover, Gelu gelu, const T* g, const T* x, const T* bias,
                    T* x_grad, T* y, T* partials) {
  __shared__ Pack<T> sums[kMapThreads];
  const Pack<T> b = cover.load(bias);
  Pack<T> sum{};
  cover.each_row([&](int64_t row) {
    const Pack<T> up = cover.load(g + row);
    Pack<T> v = cover.load(x + row), d;
#pragma unroll
    for (int k = 0; k < kPackSize; ++k) {
      v.at[k] += b.at[k];
      d.at[k] = up.at[k] == T(0) ? T(0) : up.at[k] * gelu.first(v.at[k]);
      v.at[k] = gelu.value(v.at[k]);
      sum.at[k] += d.at[k];
    }
    cover.store(d, x_grad + row);
    cover.store(v, y + row);
  });
  store_column_sums(cover, sum, sums, partials);
}

/// f(functor, type).
template <class F>
void dispatch(const char* name, UnaryOp form, const Tensor& x, F&& f) {
  dispatch_float(name, x.dtype(), [&]<class T>(std::type_identity<T> type) {
    if (form == UnaryOp::Gelu) return f(functor::Gelu{}, type);
    f(functor::GeluTanh{}, type);
  });
}

}  // namespace

void bias_gelu_forward(UnaryOp form, const Tensor& x, const Tensor& bias, const Tensor& y) {
  if (x.numel() == 0) return;
  dispatch("bias_gelu", form, x, [&]<class Gelu, class T>(Gelu gelu, std::type_identity<T>) {
    const ColumnCover cover(x.size(0), x.size(1),
                            is_aligned(x.data<T>()) && is_aligned(bias.data<T>()) && is_aligned(y.data<T>()));
    const DeviceScope scope(x.device());
    launch("bias_gelu", forward_kernel<Gelu, T>, cover.grid(), kMapThreads, 0, scope.stream(), cover, gelu, x.data<T>(),
           bias.data<T>(), y.data<T>());
  });
}

void bias_gelu_backward(UnaryOp form, const Tensor& g, const Tensor& x, const Tensor& bias,
                        const BiasGeluGrads& grads) {
  constexpr const char* kName = "bias_gelu_backward";
  if (x.numel() == 0) return halo::fill(grads.bias, 0);
  dispatch(kName, form, x, [&]<class Gelu, class T>(Gelu gelu, std::type_identity<T>) {
    const bool aligned = is_aligned(g.data<T>()) && is_aligned(x.data<T>()) && is_aligned(bias.data<T>()) &&
                         is_aligned(grads.x.data<T>()) && is_aligned(grads.y.data<T>());
    const ColumnCover cover(x.size(0), x.size(1), aligned);
    const Tensor partials = empty({cover.parts, cover.columns}, x.options());
    const DeviceScope scope(x.device());
    launch(kName, backward_kernel<Gelu, T>, cover.grid(), kMapThreads, 0, scope.stream(), cover, gelu, g.data<T>(),
           x.data<T>(), bias.data<T>(), grads.x.data<T>(), grads.y.data<T>(), partials.data<T>());
    sum_partials(kName, partials.data<T>(), cover.parts, cover.columns, cover.columns, grads.bias.data<T>(),
                 scope.stream());
  });
}

}  // namespace halo::cuda
