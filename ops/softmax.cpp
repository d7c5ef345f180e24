#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/softmax.h>
#include <halo/ops/softmax_backend.h>

namespace halo::ops {
namespace {

const char* name(bool log) { return log ? "log_softmax" : "softmax"; }

/// A single number is a line of one element.
Tensor with_axis(const Tensor& t) { return view::dense(t.rank() == 0 ? view::reshape(t, {1}) : t); }

}  // namespace

Tensor softmax(bool log, const Tensor& x, int64_t dim) {
  check_floating(name(log), {{"input", x}});
  const Tensor in = with_axis(x);
  const int axis = normalize_axis(name(log), dim, in.rank());
  const Tensor y = empty_like(in);
  run_backend<HalfKernels::Cuda>("softmax", x.device(), cpu::softmax, cuda::softmax, log, in, axis, writes(y));
  return view::reshape(y, x.shape());
}

Tensor softmax_backward(bool log, const Tensor& g, const Tensor& y, int64_t dim) {
  check_same_dtype_and_device("softmax_backward", {{"grad_output", g}, {"output", y}});
  if (g.shape() != y.shape()) fail("softmax_backward: grad_output expected shape ", y.shape(), ", got ", g.shape());
  const Tensor up = with_axis(g), out = with_axis(y);
  const int axis = normalize_axis("softmax_backward", dim, out.rank());
  const Tensor dx = empty_like(out);
  run_backend<HalfKernels::Cuda>("softmax_backward", g.device(), cpu::softmax_backward, cuda::softmax_backward, log, up,
                                 out, axis, writes(dx));
  return view::reshape(dx, y.shape());
}

}  // namespace halo::ops
