#include <halo/autograd/arithmetic.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/hook_list.h>
#include <halo/autograd/node.h>
#include <halo/autograd/saved_slot.h>
#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>

#include <atomic>
#include <utility>

namespace halo::autograd {
namespace {

std::atomic<uint64_t> next_sequence{0};
std::atomic<int64_t> node_count{0};

/// Deletes nodes one after the other: a node that goes while another is being deleted waits for its turn. Without this
/// a chain of a million nodes would be a million stack frames.
void delete_iteratively(Node* node) {
  thread_local std::vector<Node*>* waiting = nullptr;
  if (waiting != nullptr) {
    waiting->push_back(node);
    return;
  }
  std::vector<Node*> queue{node};
  waiting = &queue;
  while (!queue.empty()) {
    Node* const next = queue.back();
    queue.pop_back();
    delete next;
    --node_count;
  }
  waiting = nullptr;
}

State& make_state(const Tensor& tensor) {
  if (tensor.autograd_state() == nullptr) tensor.set_autograd_state(std::make_shared<State>());
  return *state_of(tensor);
}

bool wants_grad(const Tensor& tensor) {
  if (!tensor.defined()) return false;
  const State* state = state_of(tensor);
  return state != nullptr && state->requires_grad;
}

}  // namespace

bool BackwardContext::needs(std::size_t i) const { return i < node.next().size() && node.next()[i].node != nullptr; }

std::shared_ptr<Node> Node::create(std::string name, std::vector<Edge> next, Backward backward) {
  ++node_count;
  std::shared_ptr<Node> node(new Node, delete_iteratively);
  node->name_ = std::move(name);
  node->next_ = std::move(next);
  node->backward_ = std::move(backward);
  node->sequence_ = next_sequence++;
  node->precision_ = precision();
  return node;
}

int Node::add_output(const Tensor& output) {
  if (outputs_.empty()) streams_.push_back(current_stream(output.device()));
  outputs_.push_back({.shape = output.shape(), .options = output.options()});
  return static_cast<int>(outputs_.size()) - 1;
}

std::vector<Tensor> Node::run(std::vector<Tensor> grads, bool create_graph, bool retain_graph) const {
  if (!backward_) {
    fail("backward: ", name_,
         " was already run backward and its saved tensors are gone; pass retain_graph = true the "
         "first time to run it again");
  }
  const PrecisionGuard precision_guard(precision_);
  const StreamGuard stream_guard(streams_.front());
  const GradGuard grad_guard(create_graph);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].defined()) grads[i] = zeros(outputs_[i].shape, outputs_[i].options);
  }
  std::vector<Tensor> result = backward_(grads, {*this, create_graph, retain_graph});
  if (result.size() != next_.size()) {
    fail<InternalError>("backward: ", name_, " expected ", next_.size(), " gradients, made ", result.size());
  }
  return result;
}

Tensor Node::run_hooks(int output, Tensor grad, bool create_graph) const {
  const OutputInfo& info = outputs_[static_cast<std::size_t>(output)];
  auto hooks = info.hooks;
  if (const auto state = std::static_pointer_cast<State>(leaf.lock())) {
    const std::lock_guard lock(state->mutex);
    hooks = state->hooks;
  }
  if (hooks == nullptr) return grad;
  const PrecisionGuard precision_guard(precision_);
  const StreamGuard stream_guard(streams_.front());
  const GradGuard grad_guard(create_graph);
  for (const GradHook& hook : hooks->functions()) {
    const Tensor replaced = hook(grad);
    if (!replaced.defined()) continue;
    if (replaced.shape() != grad.shape() || replaced.dtype() != grad.dtype() || !(replaced.device() == grad.device())) {
      fail("backward: a hook on ", next_.empty() ? "a leaf" : "the result of " + name_, " expected to return ",
           grad.describe(), ", got ", replaced.describe());
    }
    grad = replaced;
  }
  return grad;
}

void Node::release() {
  backward_ = nullptr;
  for (OutputInfo& output : outputs_) output.hooks = nullptr;
}

void State::add_to_grad(Tensor gradient) {
  const NoGradGuard guard;
  const std::lock_guard lock(mutex);
  if (grad.defined()) {
    grad = grad + gradient;
    return;
  }
  // A gradient that others can see (the caller's own, an expanded view) is copied, so that changing it in place later
  // changes nothing else.
  const bool ours = gradient.use_count() == 1 && gradient.storage().use_count() == 1 && gradient.is_contiguous();
  grad = ours ? gradient.detach() : gradient.detach().clone();
}

State* state_of(const Tensor& tensor) { return static_cast<State*>(tensor.autograd_state().get()); }

Edge edge_of(const Tensor& tensor) {
  if (!wants_grad(tensor)) return {};
  State& state = *state_of(tensor);
  if (state.edge.node != nullptr) return state.edge;
  std::lock_guard lock(state.mutex);
  auto node = state.accumulate.lock();
  if (node == nullptr) {
    node = Node::create("accumulate", {}, nullptr);
    node->add_output(tensor);
    node->leaf = tensor.autograd_state();
    state.accumulate = node;
  }
  return {node, 0};
}

SavedTensor::SavedTensor(const Tensor& tensor) {
  if (!tensor.defined()) return;
  slot_ = SavedSlot::place(tensor);
  if (slot_ != nullptr) return;
  tensor_ = tensor;
  version_ = tensor.storage()->version();
}

SavedTensor SavedTensor::output(const Tensor& tensor, int index) {
  SavedTensor saved(view::alias(tensor));
  saved.output_ = index;
  return saved;
}

Tensor SavedTensor::value(const std::string& user, bool last) const {
  if (slot_ != nullptr) return slot_->value(!last);
  if (!tensor_.defined()) return {};
  const uint64_t now = tensor_.storage()->version();
  if (now != version_) {
    fail("backward: ", user, " saved ", tensor_.describe(), " at version ", version_,
         ", but it was changed in place since (version ", now, "); change a clone instead");
  }
  return tensor_;
}

Tensor SavedTensor::unpack(const BackwardContext& context) const {
  const Tensor saved = value(context.node.name(), !context.retain_graph);
  if (output_ < 0 || !saved.defined()) return saved;
  // Only a graph of the gradient needs to know that this value came from the node itself.
  Tensor result = view::alias(saved);
  if (context.create_graph) {
    State& state = make_state(result);
    state.requires_grad = true;
    state.edge = {std::const_pointer_cast<Node>(context.node.shared_from_this()), output_};
  }
  return result;
}

bool should_record(const std::vector<Tensor>& inputs) {
  if (!grad_enabled()) return false;
  for (const Tensor& input : inputs) {
    if (wants_grad(input)) return true;
  }
  return false;
}

WeightUse weight_use(const Tensor& weight) {
  const bool parameter = state_of(weight) != nullptr && weight.is_leaf();
  return parameter && !grad_enabled() ? WeightUse::Again : WeightUse::Once;
}

void record(const char* name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
            Backward backward) {
  if (!should_record(inputs)) return;
  note_leaves(inputs);
  std::vector<Edge> next;
  next.reserve(inputs.size());
  for (const Tensor& input : inputs) next.push_back(edge_of(input));
  const auto node = Node::create(name, std::move(next), std::move(backward));
  for (const Tensor& output : outputs) {
    const int index = node->add_output(output);
    if (!is_floating_point(output.dtype())) continue;  // indices and masks have no gradient
    State& state = make_state(output);
    state.requires_grad = true;
    state.edge = {node, index};
  }
}

Tensor record(const char* name, const std::vector<Tensor>& inputs, const Tensor& output,
              std::function<std::vector<Tensor>(const Tensor&, const BackwardContext&)> backward) {
  record(name, inputs, std::vector<Tensor>{output},
         [run = std::move(backward)](const std::vector<Tensor>& grads, const BackwardContext& context) {
           return run(grads[0], context);
         });
  return output;
}

int64_t live_nodes() { return node_count; }

}  // namespace halo::autograd
