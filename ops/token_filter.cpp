#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/token_filter.h>
#include <halo/ops/token_filter_backend.h>

namespace halo::ops {
namespace {

TokenFilterTensors checked(const char* op, const TokenFilterProblem& p, const TokenFilterTensors& t) {
  if (p.kernel < 1 || p.kernel > p.kMaxKernel || p.parts < 1 || p.parts > p.kMaxParts) {
    fail(op, ": kernel and parts expect 1 to ", p.kMaxKernel, " and 1 to ", p.kMaxParts, ", got ", p.kernel, " and ",
         p.parts);
  }
  if (p.width() > INT32_MAX) fail(op, ": width expects at most 2^31 - 1, got ", p.width());
  check_floating(
      op, {{"input", t.x}, {"input_bias", t.x_bias, kOptional}, {"weight", t.weight}, {"bias", t.bias, kOptional}});
  check_shape(op, "input", t.x, {p.batch, p.length, p.width()});
  check_shape(op, "input_bias", t.x_bias, {p.width()});
  check_shape(op, "weight", t.weight, {p.width(), p.kernel});
  check_shape(op, "bias", t.bias, {p.width()});
  return {view::dense(t.x), view::dense_or_undefined(t.x_bias), view::dense(t.weight),
          view::dense_or_undefined(t.bias)};
}

}  // namespace

std::vector<Tensor> token_filter_forward(const TokenFilterProblem& p, const TokenFilterTensors& operands) {
  const TokenFilterTensors dense = checked("token_filter", p, operands);
  std::vector<Tensor> y;
  for (int64_t part = 0; part < p.parts; ++part) y.push_back(empty(p.part_shape(), dense.x.options()));
  run_backend("token_filter_forward", dense.x.device(), cpu::token_filter_forward, cuda::token_filter_forward, p, dense,
              writes(y));
  return y;
}

TokenFilterTensors token_filter_backward(const TokenFilterProblem& p, const TokenFilterTensors& operands,
                                         const std::vector<Tensor>& grads) {
  constexpr const char* op = "token_filter_backward";
  const TokenFilterTensors dense = checked(op, p, operands);
  if (static_cast<int64_t>(grads.size()) != p.parts) fail(op, ": expected ", p.parts, " gradients, got ", grads.size());
  std::vector<Tensor> dense_grads;
  for (const Tensor& g : grads) {
    check_same_dtype_and_device(op, {{"input", dense.x}, {"grad_output", g}});
    check_shape(op, "grad_output", g, p.part_shape());
    dense_grads.push_back(view::dense(g));
  }
  const auto result = [&](const Shape& shape) { return empty(shape, dense.x.options()); };
  const TokenFilterTensors into{result(dense.x.shape()), result({p.width()}), result(dense.weight.shape()),
                                result({p.width()})};
  run_backend("token_filter_backward", dense.x.device(), cpu::token_filter_backward, cuda::token_filter_backward, p,
              dense, dense_grads, writes(into));
  return into;
}

}  // namespace halo::ops
