#include <halo/core/view.h>
#include <halo/ops/pair_loss_backend.h>

#include <vector>

#include "elementwise.h"

namespace halo::cpu {
namespace {

/// The sum of f(x[i], t[i]): pieces of fixed length, added up in order.
template <class T, class F>
double ordered_sum(const Tensor& x, const Tensor& t, F f) {
  constexpr int64_t kPiece = 16384;
  const Tensor dense_x = view::dense(x), dense_t = view::dense(t);
  const T *const px = dense_x.data<T>(), *const pt = dense_t.data<T>();
  std::vector<double> sums(static_cast<std::size_t>((x.numel() + kPiece - 1) / kPiece));
  parallel_for(static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      double& sum = sums[static_cast<std::size_t>(piece)];
      for (int64_t i = piece * kPiece; i < std::min(x.numel(), (piece + 1) * kPiece); ++i) {
        sum += static_cast<double>(f(px[i], pt[i]));
      }
    }
  });
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

}  // namespace

void pair_loss(PairLoss op, double delta, Reduction reduction, const Tensor& x, const Tensor& t, const Tensor& out) {
  dispatch_float("pair_loss", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    dispatch_pair_loss(op, delta, [&](auto functor) {
      const auto f = [functor](T a, T b) { return functor.value(a, b); };
      if (reduction == Reduction::None) {
        map2<T, T, T>(out, x, t, f);
        return;
      }
      const double sum = ordered_sum<T>(x, t, f);
      *out.data<T>() = static_cast<T>(reduction == Reduction::Mean ? sum / static_cast<double>(x.numel()) : sum);
    });
  });
}

void pair_loss_backward(PairLoss op, double delta, bool to_target, const Tensor& g, const Tensor& x, const Tensor& t,
                        const Tensor& out) {
  if (out.numel() == 0) return;
  dispatch_float("pair_loss_backward", x.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T *const pg = g.data<T>(), *const px = x.data<T>(), *const pt = t.data<T>();
    T* const po = out.data<T>();
    const StridedLoop<4> loop(out.shape(), {out.strides(), g.strides(), x.strides(), t.strides()});
    dispatch_pair_loss(op, delta, [&](auto f) {
      loop.for_each_run([&](const auto& at, const auto& step, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          const T up = pg[at[1] + i * step[1]], a = px[at[2] + i * step[2]], b = pt[at[3] + i * step[3]];
          const T slope = to_target ? f.by_target(a, b) : f.by_input(a, b);
          po[at[0] + i * step[0]] = up == T(0) ? T(0) : up * slope;
        }
      });
    });
  });
}

}  // namespace halo::cpu
