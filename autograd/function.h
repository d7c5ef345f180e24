// Differentiable functions of your own (docs/custom_functions.md).
#pragma once

#include <halo/core/tensor.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace halo {

/// What forward() hands to backward(), and what backward() may ask.
class FunctionContext {
 public:
  explicit FunctionContext(std::vector<bool> needs, std::vector<Tensor> saved = {})
      : needs_(std::move(needs)), saved_(std::move(saved)) {}

  /// Keeps `tensors` for backward(): inputs and results of forward(), and others, such as masks. A change of one in
  /// place before backward is noticed.
  void save_for_backward(std::vector<Tensor> tensors) { saved_ = std::move(tensors); }
  /// In backward(): what was saved, in order.
  const std::vector<Tensor>& saved_tensors() const { return saved_; }
  /// Whether input `i` wants a gradient.
  bool needs_input_grad(std::size_t i) const { return i < needs_.size() && needs_[i]; }

 private:
  std::vector<bool> needs_;
  std::vector<Tensor> saved_;
};

using TensorList = std::vector<Tensor>;

/// A struct with a name for messages and graphs, and two members:
///
///   TensorList forward(FunctionContext&, const TensorList& inputs)          one Tensor or a list
///   TensorList backward(FunctionContext&, const TensorList& grads)          from the gradients of the results (zeros
///                                                                           where there are none) to one an input, or
///                                                                           an undefined tensor where none is wanted
///
/// Its other members are what is not a tensor (or has no gradient). `bool once_differentiable = true` says that
/// backward() is not made of differentiable functions: then gradients of gradients through it are an error, instead of
/// wrong.
template <class F>
concept DifferentiableFunction = requires(F f, FunctionContext& context, const TensorList& tensors) {
  std::string(f.name);
  f.forward(context, tensors);
  { f.backward(context, tensors) } -> std::convertible_to<TensorList>;
};

namespace autograd {

/// A function whose type is forgotten.
struct FunctionCalls {
  std::string name;
  bool once_differentiable = false;
  std::function<TensorList(FunctionContext&, const TensorList&)> forward, backward;
};
TensorList run_function(const FunctionCalls& calls, const TensorList& inputs);

}  // namespace autograd

/// What f.forward() returns for `inputs` (undefined ones allowed), differentiable by f.backward(). forward() runs with
/// recording off and must not change its inputs; `f` is kept as long as the graph. backward() runs as a backward of
/// Halo's own: on the stream and with the precision of the call, recorded for create_graph.
/// @throws ArgumentError where forward() changed an input or returned an undefined tensor; backward throws it where
/// backward() returned another number of gradients than there are inputs, or one of other shape, dtype or device.
template <DifferentiableFunction F>
auto apply_function(F f, const TensorList& inputs) {
  const auto function = std::make_shared<F>(std::move(f));
  constexpr bool one = std::same_as<decltype(function->forward(std::declval<FunctionContext&>(), inputs)), Tensor>;
  autograd::FunctionCalls calls{
      .name = std::string(function->name),
      .forward = [function](FunctionContext& c, const TensorList& in) { return TensorList{function->forward(c, in)}; },
      .backward = [function](FunctionContext& c, const TensorList& g) { return function->backward(c, g); }};
  if constexpr (requires { function->once_differentiable; }) calls.once_differentiable = function->once_differentiable;
  TensorList results = autograd::run_function(calls, inputs);
  if constexpr (one) {
    return results[0];
  } else {
    return results;
  }
}

}  // namespace halo
