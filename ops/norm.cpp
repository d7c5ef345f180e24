#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/norm.h>
#include <halo/ops/norm_backend.h>

namespace halo::ops {
namespace {

void check_channels(const char* op, const char* argument, const Tensor& t, int64_t channels) {
  if (t.defined() && t.numel() != channels) {
    fail(op, ": ", argument, " expects ", channels, " values, one a channel, got ", t.shape());
  }
}

Tensor empty_if(bool wanted, const Shape& shape, const Tensor& like) {
  return wanted ? empty(shape, like.options()) : Tensor();
}

/// Saved statistics are as precise as the arithmetic: float32 of half-precision x.
TensorOptions statistics_options(const Tensor& x) {
  return {.dtype = is_half(x.dtype()) ? float32 : x.dtype(), .device = x.device()};
}

void check_statistics(const char* op, const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  const TensorOptions expected = statistics_options(x);
  for (const Tensor* t : {&mean, &rstd}) {
    if (t->dtype() != expected.dtype || !(t->device() == expected.device)) {
      fail(op, ": mean and rstd expected ", name(expected.dtype), " on ", expected.device, ", got ", t->describe());
    }
  }
}

void check_batch_norm(const char* op, const BatchNormProblem& p, const Tensor& x) {
  if (x.rank() < 2 || x.size(0) != p.batch || x.size(1) != p.channels || x.numel() != p.count() * p.channels) {
    fail(op, ": input expects [", p.batch, ", ", p.channels, ", ...] with ", p.positions, " positions, got ",
         x.shape());
  }
}

/// Running statistics are changed in place, also where they are a strided view.
void write_back(const Tensor& computed, const Tensor& target) {
  if (!target.defined()) return;
  if (computed.storage() != target.storage()) copy(computed, target);
  target.storage()->bump_version();
}

}  // namespace

NormResult batch_norm_forward(const BatchNormProblem& problem, const Tensor& x, const Tensor& weight,
                              const Tensor& bias, const Tensor& running_mean, const Tensor& running_var) {
  constexpr const char* op = "batch_norm";
  check_floating(op, {{"input", x},
                      {"weight", weight, kOptional},
                      {"bias", bias, kOptional},
                      {"running_mean", running_mean, kOptional},
                      {"running_var", running_var, kOptional}});
  check_batch_norm(op, problem, x);
  check_channels(op, "weight", weight, problem.channels);
  check_channels(op, "bias", bias, problem.channels);
  check_channels(op, "running_mean", running_mean, problem.channels);
  check_channels(op, "running_var", running_var, problem.channels);
  if (running_mean.defined() != running_var.defined()) {
    fail(op, ": running_mean and running_var expected together, got one of them");
  }
  if (!problem.training && !running_mean.defined()) fail(op, ": evaluation expects running_mean and running_var");
  if (problem.training && problem.count() == 1 && problem.channels > 0) {
    fail(op, ": training expects more than one value a channel, got input ", x.shape());
  }
  const NormResult result{empty(x.shape(), x.options()), empty({problem.channels}, statistics_options(x)),
                          empty({problem.channels}, statistics_options(x))};
  const Tensor dense_x = view::dense(x), dense_weight = view::dense_or_undefined(weight),
               dense_bias = view::dense_or_undefined(bias), mean = view::dense_or_undefined(running_mean),
               var = view::dense_or_undefined(running_var);
  run_backend<HalfKernels::Cuda>("batch_norm_forward", x.device(), cpu::batch_norm_forward, cuda::batch_norm_forward,
                                 problem, dense_x, dense_weight, dense_bias, writes(mean), writes(var), writes(result));
  if (problem.training) {
    write_back(mean, running_mean);
    write_back(var, running_var);
  }
  return result;
}

NormGrads batch_norm_backward(const BatchNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                              const Tensor& mean, const Tensor& rstd, const NormWanted& wanted) {
  constexpr const char* op = "batch_norm_backward";
  check_same_dtype_and_device(op, {{"grad_output", g}, {"input", x}, {"weight", weight, kOptional}});
  check_batch_norm(op, problem, x);
  check_batch_norm(op, problem, g);
  check_channels(op, "weight", weight, problem.channels);
  check_statistics(op, x, mean, rstd);
  check_channels(op, "mean", mean, problem.channels);
  check_channels(op, "rstd", rstd, problem.channels);
  const NormGrads grads{empty_if(wanted.x, x.shape(), x), empty_if(wanted.weight, {problem.channels}, x),
                        empty_if(wanted.bias, {problem.channels}, x)};
  const Tensor dense_g = view::dense(g), dense_x = view::dense(x), dense_weight = view::dense_or_undefined(weight),
               dense_mean = view::dense(mean), dense_rstd = view::dense(rstd);
  run_backend<HalfKernels::Cuda>("batch_norm_backward", x.device(), cpu::batch_norm_backward, cuda::batch_norm_backward,
                                 problem, dense_g, dense_x, dense_weight, dense_mean, dense_rstd, writes(grads));
  return grads;
}

namespace {

void check_row_norm(const char* op, const RowNormProblem& p, const Tensor& x) {
  if (x.numel() != p.rows * p.length() || (p.groups > 0 && p.rows % p.groups != 0)) {
    fail(op, ": input expects ", p.rows, " rows of ", p.length(), " values in groups of ", p.groups, ", got ",
         x.shape());
  }
}

}  // namespace

NormResult row_norm_forward(const RowNormProblem& problem, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  constexpr const char* op = "row_norm";
  check_same_dtype_and_device(op, {{"input", x}, {"weight", weight, kOptional}, {"bias", bias, kOptional}});
  check_row_norm(op, problem, x);
  check_channels(op, "weight", weight, problem.channels());
  check_channels(op, "bias", bias, problem.channels());
  const NormResult result{empty(x.shape(), x.options()), empty({problem.rows}, statistics_options(x)),
                          empty({problem.rows}, statistics_options(x))};
  const Tensor dense_x = view::dense(x), dense_weight = view::dense_or_undefined(weight),
               dense_bias = view::dense_or_undefined(bias);
  run_backend<HalfKernels::Cuda>("row_norm_forward", x.device(), cpu::row_norm_forward, cuda::row_norm_forward, problem,
                                 dense_x, dense_weight, dense_bias, writes(result));
  return result;
}

NormGrads row_norm_backward(const RowNormProblem& problem, const Tensor& g, const Tensor& x, const Tensor& weight,
                            const Tensor& mean, const Tensor& rstd, const NormWanted& wanted) {
  constexpr const char* op = "row_norm_backward";
  check_same_dtype_and_device(op, {{"grad_output", g}, {"input", x}, {"weight", weight, kOptional}});
  check_row_norm(op, problem, x);
  check_row_norm(op, problem, g);
  check_channels(op, "weight", weight, problem.channels());
  check_statistics(op, x, mean, rstd);
  check_channels(op, "mean", mean, problem.rows);
  check_channels(op, "rstd", rstd, problem.rows);
  const NormGrads grads{empty_if(wanted.x, x.shape(), x), empty_if(wanted.weight, {problem.channels()}, x),
                        empty_if(wanted.bias, {problem.channels()}, x)};
  const Tensor dense_g = view::dense(g), dense_x = view::dense(x), dense_weight = view::dense_or_undefined(weight),
               dense_mean = view::dense(mean), dense_rstd = view::dense(rstd);
  run_backend<HalfKernels::Cuda>("row_norm_backward", x.device(), cpu::row_norm_backward, cuda::row_norm_backward,
                                 problem, dense_g, dense_x, dense_weight, dense_mean, dense_rstd, writes(grads));
  return grads;
}

}  // namespace halo::ops
