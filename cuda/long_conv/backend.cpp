// From tensors to kernels: what ops/long_conv_backend.h asks for.
#include <halo/core/copy.h>
#include <halo/cuda/launch.h>
#include <halo/cuda/long_conv/long_conv.h>
#include <halo/ops/backend.h>
#include <halo/ops/long_conv_backend.h>

#include "../runtime/data.h"
#include "../runtime/device.h"
#include "../runtime/kept.h"
#include "direct.h"

namespace halo::cuda {
namespace {

/// Above it the transforms do not reach.
constexpr int64_t kLongestTransform = int64_t{1} << 21;

bool is_direct(const LongConvProblem& problem, LongConvMethod method) {
  return method == LongConvMethod::Direct || (method == LongConvMethod::Auto && problem.length > kLongestTransform);
}

LongConvOperands pointers(const LongConvProblem& problem, const LongConvTensors& t, DType dtype) {
  return {.problem = problem,
          .dtype = dtype,
          .weight_dtype = dtype,
          .x = data_or_null(t.x),
          .weight = data_or_null(t.weight),
          .skip = data_or_null(t.skip),
          .gate_in = data_or_null(t.gate_in),
          .gate_out = data_or_null(t.gate_out)};
}

/// Bytes of spectra that are kept of one filter bank at most.
constexpr std::size_t kMostKept = std::size_t{128} << 20;

/// The filters' transforms.
struct Spectra : Recipe {
  LongConvOperands operands;  ///< those that do not matter to it left out

  explicit Spectra(const LongConvOperands& p)
      : operands{.problem = p.problem,
                 .dtype = p.dtype,
                 .weight_dtype = p.weight_dtype,
                 .weight = p.weight,
                 .skip = p.skip} {
    operands.problem.batch = 1;
  }
  bool same_as(const Recipe& other) const override {
    const auto* o = dynamic_cast<const Spectra*>(&other);
    return o != nullptr && o->operands.problem == operands.problem && o->operands.dtype == operands.dtype &&
           o->operands.weight == operands.weight && o->operands.skip == operands.skip;
  }
  std::unique_ptr<Recipe> copy() const override { return std::make_unique<Spectra>(*this); }
  std::size_t bytes() const override { return long_conv_prepared_bytes(operands); }
  void make(void* to, cudaStream_t stream) const override {
    int device = 0;
    check(cudaGetDevice(&device), "long_conv");
    const Storage workspace(long_conv_prepare_workspace(operands), Device::cuda(device));
    long_conv_prepare(operands, to, workspace.data(), stream);
  }
};

}  // namespace

void long_conv_forward(const LongConvProblem& problem, LongConvMethod method, const LongConvTensors& operands,
                       WeightUse use, const Tensor& y) {
  if (y.numel() == 0) return;
  if (is_direct(problem, method)) {
    auto result = ops::writes(y);
    return ops::run_widened(direct_long_conv, problem, operands, result);
  }
  LongConvOperands p = pointers(problem, operands, y.dtype());
  const DeviceScope scope(y.device());
  std::shared_ptr<Kept> kept;
  if (use == WeightUse::Again) {
    if (const Spectra spectra(p); spectra.bytes() <= kMostKept) {
      kept = keep({operands.weight, operands.skip}, spectra, scope.stream());
    }
  }
  if (kept != nullptr) p.prepared = kept->data();
  const Storage workspace(long_conv_forward_workspace(p), y.device());
  long_conv_forward(p, y.data(), workspace.data(), scope.stream());
}

void long_conv_backward(const LongConvProblem& problem, LongConvMethod method, const LongConvTensors& operands,
                        const Tensor& g, const LongConvTensors& grads) {
  if (g.numel() == 0) {  // nothing is summed
    for (const Tensor* sum : {&grads.weight, &grads.skip}) {
      if (sum->defined()) halo::fill(*sum, 0);
    }
    return;
  }
  if (is_direct(problem, method)) {
    auto results = ops::writes(grads);
    return ops::run_widened(direct_long_conv_backward, problem, operands, g, results);
  }
  const LongConvOperands p = pointers(problem, operands, g.dtype());
  const LongConvGrads results{.grad_output = g.data(),
                              .x = data_or_null(grads.x),
                              .weight = data_or_null(grads.weight),
                              .skip = data_or_null(grads.skip),
                              .gate_in = data_or_null(grads.gate_in),
                              .gate_out = data_or_null(grads.gate_out)};
  const DeviceScope scope(g.device());
  const Storage workspace(long_conv_backward_workspace(p, results), g.device());
  long_conv_backward(p, results, workspace.data(), scope.stream());
}

}  // namespace halo::cuda
