// The autograd methods that core/tensor.h declares.
#include <halo/autograd/engine.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/hook_list.h>
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

void Tensor::set_data(const Tensor& data) const {
  if (!is_leaf()) fail("set_data: expected a leaf, got a result of an operation");
  if (data.shape() != shape()) fail("set_data: data expected shape ", shape(), ", got ", data.describe());
  if (requires_grad() && !is_floating_point(data.dtype())) {
    fail("set_data: data expected a floating dtype, got ", data.describe());
  }
  if (State* const state = state_of(*this)) {
    const std::lock_guard lock(state->mutex);
    state->accumulate.reset();  // graphs recorded before do not fit any more
    const bool fits =
        !state->grad.defined() || (state->grad.dtype() == data.dtype() && state->grad.device() == data.device());
    if (!fits) state->grad = {};
  }
  Impl& own = impl();
  if (data.storage() != own.storage) data.storage()->succeed(*own.storage);
  own.storage = data.storage();
  own.dtype = data.dtype();
  own.strides = data.strides();
  own.offset = data.storage_offset();
}

namespace {

void check_hookable(const char* op, const Tensor& tensor) {
  if (!tensor.requires_grad()) {
    fail(op, ": expected a tensor that requires grad, got ", tensor.describe(), " without");
  }
}

template <class List, class Hook>
HookHandle add_to(std::shared_ptr<List>& list, Hook hook) {
  if (list == nullptr) list = std::make_shared<List>();
  return list->add(std::move(hook));
}

}  // namespace

HookHandle Tensor::add_hook(GradHook hook) const {
  check_hookable("register_hook", *this);
  if (hook == nullptr) fail("register_hook: hook expected a function, got none");
  State* state = state_of(*this);
  if (!is_leaf()) return add_to(state->edge.node->output(state->edge.output).hooks, std::move(hook));
  const std::lock_guard lock(state->mutex);
  return add_to(state->hooks, std::move(hook));
}

HookHandle Tensor::register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const {
  check_hookable("register_post_accumulate_grad_hook", *this);
  if (hook == nullptr) fail("register_post_accumulate_grad_hook: hook expected a function, got none");
  if (!is_leaf()) fail("register_post_accumulate_grad_hook: expected a leaf, got a result of an operation");
  State* state = state_of(*this);
  const std::lock_guard lock(state->mutex);
  return add_to(state->accumulated, [leaf = WeakTensor(*this), call = std::move(hook)] {
    if (const Tensor alive = leaf.lock(); alive.defined()) call(alive);
  });
}

void Tensor::retain_grad() const {
  check_hookable("retain_grad", *this);
  if (is_leaf()) return;
  const State* state = state_of(*this);
  state->edge.node->output(state->edge.output).retain = autograd_state();
}

}  // namespace halo
