// From tensors to kernels: what ops/conv_backend.h asks for, through the dispatcher.
#include <halo/core/precision.h>
#include <halo/core/view.h>
#include <halo/cuda/conv/dispatch.h>
#include <halo/ops/binary_backend.h>
#include <halo/ops/conv_backend.h>
#include <halo/ops/reduce_backend.h>

#include <bit>

#include "../runtime/device.h"
#include "../runtime/kept.h"

namespace halo::cuda {
namespace {

using conv::ConvConfig;

/// The largest power of two up to 16 that divides the address of every operand.
int common_alignment(const conv::Operands& operands) {
  const auto bits = reinterpret_cast<uintptr_t>(operands.x) | reinterpret_cast<uintptr_t>(operands.w) |
                    reinterpret_cast<uintptr_t>(operands.y) | reinterpret_cast<uintptr_t>(operands.bias) | 16u;
  return 1 << std::countr_zero(bits);
}

/// Weights laid out as an algorithm wants them.
struct Layout : Recipe {
  const conv::Algorithm& algorithm;
  ConvProblem problem;
  ConvConfig config;  ///< bias and activation, which do not matter to it, left out
  const void* weight;

  Layout(const conv::Algorithm& a, const ConvProblem& p, const ConvConfig& c, const void* w)
      : algorithm(a), problem(p), config(c), weight(w) {
    config.bias = false;
    config.activation = {};
  }
  bool same_as(const Recipe& other) const override {
    const auto* o = dynamic_cast<const Layout*>(&other);
    return o != nullptr && &o->algorithm == &algorithm && o->problem == problem && o->config == config &&
           o->weight == weight;
  }
  std::unique_ptr<Recipe> copy() const override { return std::make_unique<Layout>(*this); }
  std::size_t bytes() const override { return algorithm.prepared_bytes(problem, config); }
  void make(void* to, cudaStream_t stream) const override { algorithm.prepare(problem, config, weight, to, stream); }
};

/// Runs the kernel that the dispatcher chooses, with scratch of its own, on the current stream.
void run(const ConvProblem& problem, ConvConfig config, conv::Operands operands, const Tensor& weight, WeightUse use) {
  const Device device = weight.device();
  const DeviceScope scope(device);
  config.precision = precision();
  config.alignment = common_alignment(operands);
  // Where nothing is summed the result is the bias or zero: the plain kernel knows, the others need not.
  const conv::Algorithm& algorithm =
      problem.flops() > 0 ? conv::select_algorithm(problem, config) : conv::find_algorithm("direct");
  const Storage workspace(algorithm.workspace_bytes(problem, config), device);
  operands.workspace = workspace.data();
  std::shared_ptr<Kept> kept;
  if (use == WeightUse::Again && algorithm.prepare != nullptr) {
    kept = keep({weight}, Layout(algorithm, problem, config, operands.w), scope.stream());
  }
  if (kept != nullptr) operands.prepared = kept->data();
  algorithm.run(problem, config, operands, scope.stream());
}

/// x[n, c, ...] += bias[c].
void add_per_channel(const Tensor& bias, const Tensor& x) {
  Shape column = Shape::filled(x.rank() - 1, 1);
  column[0] = bias.size(0);
  binary(BinaryOp::Add, x, view::expand(view::reshape(bias, column), x.shape()), x);
}

}  // namespace

void conv_forward(const ConvProblem& problem, const Tensor& x, const Tensor& w, const Tensor& bias,
                  const Activation& activation, WeightUse use, const Tensor& y) {
  if (y.numel() == 0) return;
  const bool has_bias = bias.defined();
  run(problem, {.pass = ConvPass::Forward, .dtype = x.dtype(), .bias = has_bias, .activation = activation},
      {.x = x.data(), .w = w.data(), .y = y.data(), .bias = has_bias ? bias.data() : nullptr}, w, use);
}

void conv_backward_input(const ConvProblem& problem, const Tensor& g, const Tensor& w, const Tensor& bias,
                         WeightUse use, const Tensor& x) {
  if (x.numel() == 0) return;
  run(problem, {.pass = ConvPass::BackwardInput, .dtype = g.dtype()}, {.x = x.data(), .w = w.data(), .y = g.data()}, w,
      use);
  if (bias.defined()) add_per_channel(bias, x);
}

void conv_backward_weight(const ConvProblem& problem, const Tensor& x, const Tensor& g, const Tensor& w) {
  if (w.numel() == 0) return;
  run(problem, {.pass = ConvPass::BackwardWeight, .dtype = x.dtype()}, {.x = x.data(), .w = w.data(), .y = g.data()}, w,
      WeightUse::Once);
}

void sum_per_channel(const Tensor& g, const Tensor& sum) { reduce(ReduceOp::Sum, view::transpose(g, 0, 1), 1, sum); }

}  // namespace halo::cuda
