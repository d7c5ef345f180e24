#include <halo/autograd/arithmetic.h>
#include <halo/autograd/engine.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/gradcheck.h>
#include <halo/core/error.h>
#include <halo/core/generator.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace halo {
namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

/// `inputs` with fresh leaves in place of those that require grad.
std::vector<Tensor> fresh_leaves(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) {
    Tensor copy = input.detach().clone();
    if (input.requires_grad()) copy.requires_grad_();
    leaves.push_back(std::move(copy));
  }
  return leaves;
}

std::vector<Tensor> those_that_require_grad(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> result;
  for (const Tensor& input : inputs) {
    if (input.requires_grad()) result.push_back(input);
  }
  return result;
}

double dot(const Tensor& a, const Tensor& b) { return (a.detach() * b).sum().item(); }

/// Central differences of <f(inputs), cotangent>, where perturbing is done in place on copies.
void compare(const char* order, const Function& f, const std::vector<Tensor>& inputs, const Tensor& cotangent,
             const std::vector<Tensor>& analytic, const GradcheckOptions& options, GradcheckResult& result) {
  const std::vector<Tensor> at = fresh_leaves(inputs);
  std::size_t which = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    const std::vector<double> expected = analytic[which++].to_vector<double>();
    const Tensor flat = at[i].detach().reshape({at[i].numel()});
    const std::vector<double> values = flat.to_vector<double>();
    double scale = 1;
    std::vector<double> numerical(expected.size());
    for (std::size_t k = 0; k < expected.size(); ++k) {
      const Tensor element = flat.select(0, static_cast<int64_t>(k));
      element.fill_(values[k] + options.step);
      const double up = dot(f(at), cotangent);
      element.fill_(values[k] - options.step);
      const double down = dot(f(at), cotangent);
      element.fill_(values[k]);
      numerical[k] = (up - down) / (2 * options.step);
      scale = std::max(scale, std::abs(numerical[k]));
    }
    for (std::size_t k = 0; k < expected.size(); ++k) {
      const double error = std::abs(expected[k] - numerical[k]) / scale;
      if (!(error <= result.worst)) {
        result.worst = error;
        result.message = concat(order, " order, input ", i, " element ", k, ": gradient ", expected[k], ", numerical ",
                                numerical[k]);
      }
      if (!(error <= options.tolerance)) result.ok = false;
    }
  }
}

}  // namespace

GradcheckResult gradcheck(const Function& f, const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  for (const Tensor& input : inputs) {
    if (input.requires_grad() && input.dtype() != DType::Float64) {
      fail("gradcheck: inputs expected float64, got ", input.describe());
    }
  }
  GradcheckResult result;
  Generator generator(options.seed);
  const GradGuard guard(true);
  const std::vector<Tensor> leaves = fresh_leaves(inputs);
  const Tensor output = f(leaves);
  const Tensor cotangent = randn(output.shape(), output.options(), generator);
  const auto wanted = those_that_require_grad(leaves);
  const GradOptions unused{.allow_unused = true};
  compare("first", f, inputs, cotangent, grad({output}, wanted, {cotangent}, unused), options, result);
  if (!options.second_order || !result.ok) return result;

  // The gradients as a function of the inputs and the cotangent, contracted with random weights.
  std::vector<Tensor> weights;
  for (const Tensor& leaf : wanted) weights.push_back(randn(leaf.shape(), leaf.options(), generator));
  const Function contracted = [&](const std::vector<Tensor>& all) {
    const std::vector<Tensor> at(all.begin(), all.end() - 1);
    const Tensor y = f(at);
    Tensor total = zeros({}, {.dtype = DType::Float64, .device = y.device()});
    if (!y.requires_grad()) return total;
    const auto grads =
        grad({y}, those_that_require_grad(at), {all.back()}, {.create_graph = true, .allow_unused = true});
    for (std::size_t i = 0; i < grads.size(); ++i) total = total + sum(grads[i] * weights[i]);
    return total;
  };
  std::vector<Tensor> all = inputs;
  all.push_back(cotangent.detach().requires_grad_());
  const std::vector<Tensor> second_leaves = fresh_leaves(all);
  const Tensor total = contracted(second_leaves);
  const auto second_wanted = those_that_require_grad(second_leaves);
  std::vector<Tensor> second;
  if (total.requires_grad()) {
    second = grad({total}, second_wanted, {}, unused);
  } else {
    for (const Tensor& t : second_wanted) second.push_back(zeros_like(t));
  }
  compare("second", contracted, all, ones({}, total.options()), second, options, result);
  return result;
}

}  // namespace halo
