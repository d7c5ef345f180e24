#include <halo/ops/unary_backend.h>

#include <type_traits>

#include "elementwise.h"
#include "isa.h"

namespace halo::cpu {
namespace {

/// The kernels of a GELU, else null.
const GeluKernels* gelu_kernels(UnaryOp op) {
  if (op == UnaryOp::Gelu) return &isa_kernels().gelu;
  return op == UnaryOp::GeluTanh ? &isa_kernels().gelu_tanh : nullptr;
}

}  // namespace

void unary(UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& y) {
  dispatch_float("unary", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_same_v<T, float>) {
      if (const GeluKernels* gelu = gelu_kernels(op)) return map_lines(y, gelu->value, x);
    }
    dispatch_unary(op, params, [&](auto f) { map1<T, T>(y, x, [f](T v) { return f.value(v); }); });
  });
}

void unary_derivative(UnaryOp op, UnaryParams params, int order, const Tensor& g, const Tensor& s, const Tensor& out) {
  dispatch_float("unary_derivative", g.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    if constexpr (std::is_same_v<T, float>) {
      if (const GeluKernels* gelu = order == 1 ? gelu_kernels(op) : nullptr) {
        return map_lines(out, gelu->derivative, g, s);
      }
    }
    dispatch_unary(op, params, [&](auto f) {
      if (order == 1) {
        map2<T, T, T>(out, g, s, [f](T up, T v) { return up == T(0) ? T(0) : up * f.first(v); });
      } else {
        map2<T, T, T>(out, g, s, [f](T up, T v) { return up == T(0) ? T(0) : up * f.second(v); });
      }
    });
  });
}

}  // namespace halo::cpu
