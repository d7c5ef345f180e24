#include <halo/core/error.h>
#include <halo/ops/backend.h>
#include <halo/ops/pair_loss.h>
#include <halo/ops/pair_loss_backend.h>

namespace halo::ops {
namespace {

void check_pair(const char* op, const Tensor& x, const Tensor& t) {
  check_floating(op, {{"input", x}, {"target", t}});
  if (x.shape() != t.shape()) fail(op, ": target expected input's shape ", x.shape(), ", got ", t.shape());
}

}  // namespace

Tensor pair_loss(const char* name, PairLoss op, double delta, Reduction reduction, const Tensor& x, const Tensor& t) {
  check_pair(name, x, t);
  if (op == PairLoss::Huber && !(delta > 0)) fail(name, ": delta expected above 0, got ", delta);
  const Tensor out = empty(reduction == Reduction::None ? x.shape() : Shape{}, x.options());
  run_backend("pair_loss", x.device(), cpu::pair_loss, cuda::pair_loss, op, delta, reduction, x, t, writes(out));
  return out;
}

Tensor pair_loss_backward(PairLoss op, double delta, bool to_target, const Tensor& g, const Tensor& x,
                          const Tensor& t) {
  check_pair("pair_loss_backward", x, t);
  check_pair("pair_loss_backward", x, g);
  const Tensor out = empty(x.shape(), x.options());
  run_backend("pair_loss_backward", x.device(), cpu::pair_loss_backward, cuda::pair_loss_backward, op, delta, to_target,
              g, x, t, writes(out));
  return out;
}

}  // namespace halo::ops
