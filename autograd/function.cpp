#include <halo/autograd/function.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/node.h>
#include <halo/core/error.h>
#include <halo/core/view.h>

#include <algorithm>

namespace halo::autograd {
namespace {

/// What was saved, as backward needs it.
struct Saved {
  SavedTensor tensor;
  bool known;  ///< an input or a result: a graph of the gradient goes through it
};

std::vector<Saved> keep(const FunctionContext& context, const TensorList& inputs, const TensorList& results) {
  std::vector<Saved> saved;
  for (const Tensor& t : context.saved_tensors()) {
    const auto is_this = [&](const Tensor& other) { return t.defined() && other.defined() && other.is_same(t); };
    const auto result = std::ranges::find_if(results, is_this);
    if (std::ranges::any_of(inputs, is_this) || !t.defined() || !is_floating_point(t.dtype())) {
      saved.push_back({SavedTensor(t), true});
    } else if (result != results.end()) {
      saved.push_back({SavedTensor::output(t, static_cast<int>(result - results.begin())), true});
    } else {
      saved.push_back({SavedTensor(t), false});
    }
  }
  return saved;
}

/// Runs forward, recording nothing.
TensorList run_forward(const FunctionCalls& calls, FunctionContext& context, const TensorList& inputs) {
  std::vector<uint64_t> versions;
  for (const Tensor& t : inputs) versions.push_back(t.defined() ? t.storage()->version() : 0);
  const NoGradGuard guard;
  const TensorList results = calls.forward(context, inputs);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined()) fail(calls.name, ": forward expected to return defined tensors, result ", i, " is not");
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i].storage()->version() != versions[i]) {
      fail(calls.name, ": forward expected to leave its inputs as they are, but it changed input ", i, " in place");
    }
  }
  return results;
}

void check_gradients(const std::string& name, const TensorList& grads, const BackwardContext& context,
                     const std::vector<Node::OutputInfo>& inputs) {
  if (grads.size() != inputs.size()) {
    fail("backward: ", name, " expected to return ", inputs.size(), " gradients, one an input, got ", grads.size());
  }
  for (std::size_t i = 0; i < grads.size(); ++i) {
    const auto& [shape, options, hooks, retain] = inputs[i];
    if (!grads[i].defined() || !context.needs(i)) continue;
    if (grads[i].shape() != shape || grads[i].dtype() != options.dtype || !(grads[i].device() == options.device)) {
      fail("backward: ", name, " expected to return ", halo::name(options.dtype), " ", shape, " on ", options.device,
           " for input ", i, ", got ", grads[i].describe());
    }
  }
}

/// backward() of a function that cannot be differentiated again: its results say so where somebody tries.
TensorList run_once(const FunctionCalls& calls, FunctionContext& context, const TensorList& grads) {
  TensorList results;
  {
    const NoGradGuard guard;
    results = calls.backward(context, grads);
  }
  TensorList sources = grads;
  for (const Tensor& t : context.saved_tensors()) sources.push_back(t);
  const auto refuse = [name = calls.name](const TensorList&, const BackwardContext&) -> TensorList {
    fail("backward: ", name, " is once_differentiable, so that it has no gradient of its gradient");
  };
  for (Tensor& result : results) {
    if (!result.defined()) continue;
    result = view::alias(result);
    record(("backward of " + calls.name).c_str(), sources, TensorList{result}, refuse);
  }
  return results;
}

}  // namespace

TensorList run_function(const FunctionCalls& calls, const TensorList& inputs) {
  std::vector<bool> needs;
  std::vector<Node::OutputInfo> expected;
  for (const Tensor& t : inputs) {
    needs.push_back(grad_enabled() && t.defined() && t.requires_grad());
    expected.push_back(t.defined() ? Node::OutputInfo{.shape = t.shape(), .options = t.options()} : Node::OutputInfo{});
  }
  FunctionContext context(needs);
  const TensorList returned = run_forward(calls, context, inputs);
  TensorList results;  // of their own: what was returned may be an input, or held by the function
  for (const Tensor& t : returned) results.push_back(view::alias(t));
  if (!should_record(inputs)) return results;
  record(calls.name.c_str(), inputs, results,
         [calls, needs, expected, saved = keep(context, inputs, returned)](const TensorList& grads,
                                                                           const BackwardContext& node) {
           TensorList tensors;
           for (const Saved& s : saved) {
             if (node.create_graph && !s.known && !calls.once_differentiable) {
               fail("backward: ", calls.name,
                    " saved a tensor that is neither an input nor a result, so that gradients of its gradient would "
                    "miss it: return it as a result, or compute it again in backward");
             }
             tensors.push_back(s.tensor.unpack(node));
           }
           FunctionContext then(needs, std::move(tensors));
           TensorList result = node.create_graph && calls.once_differentiable ? run_once(calls, then, grads)
                                                                              : calls.backward(then, grads);
           check_gradients(calls.name, result, node, expected);
           return result;
         });
  return results;
}

}  // namespace halo::autograd
