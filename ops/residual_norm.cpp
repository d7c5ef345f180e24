// One kernel where a backend has it for the problem, else sums and the kernels of layer norm.
#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/binary_backend.h>
#include <halo/ops/norm_backend.h>
#include <halo/ops/reduce_backend.h>
#include <halo/ops/residual_norm.h>
#include <halo/ops/residual_norm_backend.h>

namespace halo::ops {
namespace {

void check(const char* op, const char* argument, const Tensor& t, int64_t numel) {
  if (t.defined() && t.numel() != numel) fail(op, ": ", argument, " expects ", numel, " values, got ", t.shape());
}

/// What the parts are made of on each device.
struct OnCpu {
  static constexpr auto binary = cpu::binary;
  static constexpr auto reduce = cpu::reduce;
  static constexpr auto norm = cpu::row_norm_forward;
  static constexpr auto norm_backward = cpu::row_norm_backward;
};
struct OnCuda {
  static constexpr auto binary = cuda::binary;
  static constexpr auto reduce = cuda::reduce;
  static constexpr auto norm = cuda::row_norm_forward;
  static constexpr auto norm_backward = cuda::row_norm_backward;
};

template <class On>
void add(const Tensor& t, const Tensor& to) {
  On::binary(BinaryOp::Add, to, view::expand(t, to.shape()), to);
}

RowNormProblem rows(const ResidualNormProblem& p) {
  return {.rows = p.rows, .channels_per_row = p.length, .eps = p.eps};
}

template <class On>
void forward_in_parts(const ResidualNormProblem& p, const ResidualNormTensors& t, const ResidualNormResult& r) {
  halo::copy(t.x, r.sum);
  if (t.x_bias.defined()) add<On>(t.x_bias, r.sum);
  if (t.residual.defined()) add<On>(view::reshape(t.residual, r.sum.shape()), r.sum);
  On::norm(rows(p), r.sum, t.weight, t.bias, {r.y, r.mean, r.rstd});
}

template <class On>
void backward_in_parts(const ResidualNormProblem& p, const ResidualNormResult& r, const Tensor& weight,
                       const Tensor& g_sum, const Tensor& g_y, const ResidualNormGrads& grads) {
  On::norm_backward(rows(p), g_y, r.sum, weight, r.mean, r.rstd, {grads.sum, grads.weight, grads.bias});
  if (g_sum.defined()) add<On>(view::reshape(g_sum, grads.sum.shape()), grads.sum);
  On::reduce(ReduceOp::Sum, view::transpose(view::reshape(grads.sum, {p.rows, p.length}), 0, 1), 1, grads.x_bias);
}

/// One kernel, which takes half types as they are, or parts, which would round them in between.
template <class... Args>
void run(const char* op, const ResidualNormProblem& p, const Tensor& t, void (*cpu)(Args...),
         void (*cuda_parts)(Args...), void (*cuda_kernel)(Args...), auto&&... args) {
  const bool in_one_kernel = t.device().is_cuda() && t.numel() > 0 && cuda::residual_norm_fits(p);
  if (in_one_kernel) return run_backend<HalfKernels::Cuda>(op, t.device(), cpu, cuda_kernel, p, args...);
  run_backend(op, t.device(), cpu, cuda_parts, p, args...);
}

}  // namespace

ResidualNormResult residual_norm_forward(const ResidualNormProblem& p, const ResidualNormTensors& t, const char* op) {
  check_floating(op, {{"input", t.x},
                      {"input_bias", t.x_bias, kOptional},
                      {"residual", t.residual, kOptional},
                      {"weight", t.weight, kOptional},
                      {"bias", t.bias, kOptional}});
  check(op, "input", t.x, p.rows * p.length);
  check(op, "residual", t.residual, p.rows * p.length);
  check(op, "input_bias", t.x_bias, p.length);
  check(op, "weight", t.weight, p.length);
  check(op, "bias", t.bias, p.length);
  const auto like = [&](const Shape& shape) { return empty(shape, t.x.options()); };
  const TensorOptions statistics{is_half(t.x.dtype()) ? DType::Float32 : t.x.dtype(), t.x.device()};
  const ResidualNormResult result{like(t.x.shape()), like(t.x.shape()), empty({p.rows}, statistics),
                                  empty({p.rows}, statistics)};
  const ResidualNormTensors dense{view::dense(t.x), view::dense_or_undefined(t.x_bias),
                                  view::dense_or_undefined(t.residual), view::dense_or_undefined(t.weight),
                                  view::dense_or_undefined(t.bias)};
  run("residual_norm_forward", p, t.x, forward_in_parts<OnCpu>, forward_in_parts<OnCuda>, cuda::residual_norm_forward,
      dense, writes(result));
  return result;
}

ResidualNormGrads residual_norm_backward(const ResidualNormProblem& p, const ResidualNormResult& r,
                                         const Tensor& weight, const Tensor& g_sum, const Tensor& g_y) {
  constexpr const char* op = "residual_norm_backward";
  check_same_dtype_and_device(
      op, {{"sum", r.sum}, {"weight", weight, kOptional}, {"grad_sum", g_sum, kOptional}, {"grad_output", g_y}});
  check(op, "grad_output", g_y, p.rows * p.length);
  check(op, "grad_sum", g_sum, p.rows * p.length);
  const auto row = [&] { return empty({p.length}, g_y.options()); };
  const ResidualNormGrads grads{empty(r.sum.shape(), g_y.options()), row(), row(), row()};
  run("residual_norm_backward", p, g_y, backward_in_parts<OnCpu>, backward_in_parts<OnCuda>,
      cuda::residual_norm_backward, r, view::dense_or_undefined(weight), view::dense_or_undefined(g_sum),
      view::dense(g_y), writes(grads));
  return grads;
}

}  // namespace halo::ops
