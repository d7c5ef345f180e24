#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/long_conv.h>
#include <halo/ops/long_conv_backend.h>

namespace halo::ops {
namespace {

/// Checks what is there, and makes it dense.
LongConvTensors checked(const char* op, const LongConvProblem& p, const LongConvTensors& t, const Tensor& g) {
  check_floating(op, {{"input", t.x, kOptional},
                      {"weight", t.weight, kOptional},
                      {"skip", t.skip, kOptional},
                      {"gate_in", t.gate_in, kOptional},
                      {"gate_out", t.gate_out, kOptional},
                      {"grad_output", g, kOptional}});
  const Shape sequences{p.batch, p.channels, p.length};
  check_shape(op, "input", t.x, sequences);
  check_shape(op, "weight", t.weight, {p.channels, p.kernel});
  check_shape(op, "skip", t.skip, {p.channels});
  check_shape(op, "gate_in", t.gate_in, sequences);
  check_shape(op, "gate_out", t.gate_out, sequences);
  check_shape(op, "grad_output", g, sequences);
  using view::dense_or_undefined;
  return {dense_or_undefined(t.x), dense_or_undefined(t.weight), dense_or_undefined(t.skip),
          dense_or_undefined(t.gate_in), dense_or_undefined(t.gate_out)};
}

}  // namespace

Tensor long_conv_forward(const LongConvProblem& problem, const LongConvTensors& operands, LongConvMethod method,
                         WeightUse use, const char* op) {
  check_defined(op, {{"input", operands.x}, {"weight", operands.weight}});
  const LongConvTensors dense = checked(op, problem, operands, {});
  const auto same_memory = [](const Tensor& a, const Tensor& b) { return !a.defined() || a.storage() == b.storage(); };
  const bool copied =
      !same_memory(operands.weight, dense.weight) || !same_memory(operands.skip, dense.skip);  // for this call alone
  Tensor y = empty(dense.x.shape(), dense.x.options());
  run_backend<HalfKernels::Cuda>("long_conv_forward", y.device(), cpu::long_conv_forward, cuda::long_conv_forward,
                                 problem, method, dense, copied ? WeightUse::Once : use, writes(y));
  return y;
}

LongConvTensors long_conv_backward(const LongConvProblem& problem, const LongConvTensors& operands, const Tensor& g,
                                   const LongConvWanted& wanted, LongConvMethod method) {
  constexpr const char* op = "long_conv_backward";
  check_defined(op, {{"grad_output", g}});
  const LongConvTensors dense = checked(op, problem, operands, g);
  const bool needs_x = wanted.weight || wanted.skip || wanted.gate_in || wanted.gate_out;
  const bool needs_weight = wanted.x || wanted.gate_in || wanted.gate_out;
  check_defined(op, {{"input", dense.x, !needs_x},
                     {"weight", dense.weight, !needs_weight},
                     {"gate_in", dense.gate_in, !wanted.gate_in},
                     {"gate_out", dense.gate_out, !wanted.gate_out}});
  const auto result = [&](bool want, const Shape& shape) { return want ? empty(shape, g.options()) : Tensor(); };
  const LongConvTensors grads{result(wanted.x, g.shape()), result(wanted.weight, {problem.channels, problem.kernel}),
                              result(wanted.skip, {problem.channels}), result(wanted.gate_in, g.shape()),
                              result(wanted.gate_out, g.shape())};
  const Tensor dense_g = view::dense(g);
  run_backend<HalfKernels::Cuda>("long_conv_backward", g.device(), cpu::long_conv_backward, cuda::long_conv_backward,
                                 problem, method, dense, dense_g, writes(grads));
  return grads;
}

}  // namespace halo::ops
