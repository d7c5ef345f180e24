// Losses between two tensors; the formulas are in ops/pair_loss.h.
#include <halo/ops/pair_loss_backend.h>
#include <halo/ops/reduce_backend.h>

#include "../device/map.cuh"

namespace halo::cuda {
namespace {

template <class F>
struct Loss {
  F f;
  template <class T>
  __device__ T operator()(T x, T t) const {
    return f.value(x, t);
  }
};

template <class F>
struct LossGradient {
  F f;
  bool to_target;
  template <class T>
  __device__ T operator()(T g, T x, T t) const {
    if (g == T(0)) return T(0);
    return g * (to_target ? f.by_target(x, t) : f.by_input(x, t));
  }
};

}  // namespace

void pair_loss(PairLoss op, double delta, Reduction reduction, const Tensor& x, const Tensor& t, const Tensor& out) {
  const Tensor losses = reduction == Reduction::None ? out : empty(x.shape(), x.options());
  dispatch_float("pair_loss", x.dtype(), [&]<class T>(std::type_identity<T>) {
    dispatch_pair_loss(op, delta, [&]<class F>(F f) {
      map("pair_loss", Loss<F>{f}, Elements<T>{losses}, Elements<T>{x}, Elements<T>{t});
    });
  });
  if (reduction == Reduction::None) return;
  reduce(reduction == Reduction::Mean ? ReduceOp::Mean : ReduceOp::Sum, losses, 0, out);
}

void pair_loss_backward(PairLoss op, double delta, bool to_target, const Tensor& g, const Tensor& x, const Tensor& t,
                        const Tensor& out) {
  dispatch_float("pair_loss_backward", x.dtype(), [&]<class T>(std::type_identity<T>) {
    dispatch_pair_loss(op, delta, [&]<class F>(F f) {
      map("pair_loss_backward", LossGradient<F>{f, to_target}, Elements<T>{out}, Elements<T>{g}, Elements<T>{x},
          Elements<T>{t});
    });
  });
}

}  // namespace halo::cuda
