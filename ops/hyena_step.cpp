#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/hyena_step.h>
#include <halo/ops/hyena_step_backend.h>

namespace halo::ops {
namespace {

constexpr const char* kOp = "hyena_step";

void check(const char* argument, const Tensor& t, const Shape& shape) {
  if (t.shape() != shape || !t.is_contiguous()) {
    fail(kOp, ": ", argument, " expects dense ", shape, ", got ", t.describe());
  }
}

}  // namespace

Tensor hyena_step(const HyenaStepProblem& p, const HyenaStepTensors& t) {
  check_same_dtype_and_device(kOp, {{"projections", t.projections},
                                    {"projection_bias", t.projection_bias},
                                    {"short_weight", t.short_weight},
                                    {"short_bias", t.short_bias},
                                    {"taps", t.taps},
                                    {"skip", t.skip},
                                    {"window", t.window},
                                    {"inputs", t.inputs},
                                    {"pending", t.pending}});
  const int64_t width = (p.order + 1) * p.channels;
  check("projections", t.projections, {p.batch, width});
  check("projection_bias", t.projection_bias, {width});
  check("short_weight", t.short_weight, {width, p.kernel});
  check("short_bias", t.short_bias, {width});
  check("skip", t.skip, {p.convolutions(), p.channels});
  check("taps", t.taps, {p.convolutions(), p.channels, t.taps.size(-1)});
  check("position", t.position, {1});
  check("window", t.window, {p.batch, width, p.kernel - 1});
  check("inputs", t.inputs, {p.batch, p.convolutions(), p.channels, p.capacity});
  check("pending", t.pending, t.inputs.shape());
  if (t.taps.size(-1) < std::min(p.kBlock, p.capacity)) {
    fail(kOp, ": taps expect at least ", std::min(p.kBlock, p.capacity), " a channel, got ", t.taps.shape());
  }
  Tensor y = empty({p.batch, p.channels}, t.projections.options());
  run_backend(kOp, y.device(), cpu::hyena_step, cuda::hyena_step, p, writes(t), writes(y));
  return y;
}

}  // namespace halo::ops
