// The autograd methods that core/tensor.h declares.
#include <halo/autograd/engine.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/node.h>
#include <halo/core/error.h>
#include <halo/core/view.h>

namespace halo {

using autograd::State;
using autograd::state_of;

bool Tensor::requires_grad() const {
  const State* state = state_of(*this);
  return state != nullptr && state->requires_grad;
}

bool Tensor::is_leaf() const {
  const State* state = state_of(*this);
  return state == nullptr || state->edge.node == nullptr;
}

const Tensor& Tensor::requires_grad_(bool on) const {
  if (on && !is_floating_point(dtype())) fail("requires_grad_: expected a floating dtype, got ", describe());
  if (!is_leaf()) fail("requires_grad_: expected a leaf, got a result of an operation; detach() it first");
  if (autograd_state() == nullptr) set_autograd_state(std::make_shared<State>());
  state_of(*this)->requires_grad = on;
  return *this;
}

Tensor Tensor::grad() const {
  State* state = state_of(*this);
  if (state == nullptr) return {};
  std::lock_guard lock(state->mutex);
  return state->grad;
}

void Tensor::set_grad(const Tensor& grad) const {
  if (grad.defined() && (grad.shape() != shape() || grad.dtype() != dtype() || !(grad.device() == device()))) {
    fail("set_grad: grad expected ", describe(), ", got ", grad.describe());
  }
  if (grad.defined() && grad.requires_grad()) {
    fail("set_grad: grad expected no graph of its own (it would keep itself alive); detach() it first");
  }
  if (autograd_state() == nullptr) set_autograd_state(std::make_shared<State>());
  State* state = state_of(*this);
  std::lock_guard lock(state->mutex);
  state->grad = grad;
}

void Tensor::backward(const Tensor& grad, bool retain_graph) const { halo::backward({*this}, {grad}, retain_graph); }

Tensor Tensor::detach() const { return view::alias(*this); }

}  // namespace halo
