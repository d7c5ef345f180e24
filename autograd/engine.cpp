#include <halo/autograd/arithmetic.h>
#include <halo/autograd/engine.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/hook_list.h>
#include <halo/autograd/node.h>
#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>

#include <algorithm>
#include <cmath>
#include <queue>
#include <unordered_map>
#include <utility>

namespace halo {
namespace {

using autograd::Edge;
using autograd::Node;
using autograd::State;

/// Gradients on their way into one node, one an output.
struct Pending {
  std::vector<Tensor> grads;
  int waiting = 0;      ///< consumers that have not run yet
  bool useful = false;  ///< whether a wanted gradient lies behind it
};

/// What is asked for, by node and output: the slot of the result.
struct Wanted {
  std::shared_ptr<Node> node;
  int output;
};

/// Later-made nodes first: a consumer is always younger than its producer, and the order is the same every run.
struct Older {
  bool operator()(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) const {
    return a->sequence() < b->sequence();
  }
};

class Run {
 public:
  Run(bool keep_graph, bool create_graph) : keep_graph_(keep_graph), create_graph_(create_graph) {}

  void seed(const Tensor& output, const Tensor& grad) {
    const Edge edge = autograd::edge_of(output);
    if (edge.node == nullptr) fail("backward: output expected to require grad, got ", output.describe(), " without");
    roots_.push_back(edge);
    seeds_.push_back(grad);
  }

  /// Gradients of `wanted`, or (where it is empty) accumulation into leaves.
  std::vector<Tensor> execute(const std::vector<Wanted>& wanted) {
    discover(wanted);
    for (std::size_t i = 0; i < roots_.size(); ++i) deliver(roots_[i], seeds_[i], nullptr);
    std::vector<Tensor> results(wanted.size());
    std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, Older> ready;
    std::unordered_map<const Node*, bool> queued;
    for (const Edge& root : roots_) {
      if (pending_[root.node.get()].waiting == 0 && !std::exchange(queued[root.node.get()], true))
        ready.push(root.node);
    }
    while (!ready.empty()) {
      const std::shared_ptr<Node> node = ready.top();
      ready.pop();
      Pending pending = std::move(pending_[node.get()]);
      const bool passes = wanted.empty() || pending.useful;  // and does not end here
      for (std::size_t output = 0; output < pending.grads.size(); ++output) {
        finish(*node, static_cast<int>(output), pending.grads[output], passes, wanted, results);
      }
      if (node->next().empty() && !node->leaf.expired()) {
        if (wanted.empty()) accumulate(*node, std::move(pending.grads[0]));
        continue;
      }
      if (!passes) {
        for (const Edge& next : node->next()) release_one(next, ready);
        continue;
      }
      const std::vector<Tensor> grads = node->run(std::move(pending.grads), create_graph_, keep_graph_);
      if (detect_anomaly()) check_for_nan(*node, grads);
      if (!keep_graph_) node->release();
      for (std::size_t i = 0; i < grads.size(); ++i) {
        const Edge& next = node->next()[i];
        if (next.node == nullptr) continue;
        if (grads[i].defined()) deliver(next, grads[i], node.get());
        release_one(next, ready);
      }
    }
    return results;
  }

 private:
  /// Walks everything behind the roots once, counting consumers; then marks what leads to a wanted gradient.
  void discover(const std::vector<Wanted>& wanted) {
    std::vector<Node*> stack, order;
    for (const Edge& root : roots_) visit(root.node.get(), stack);
    while (!stack.empty()) {
      Node* const node = stack.back();
      stack.pop_back();
      order.push_back(node);
      for (const Edge& next : node->next()) {
        if (next.node == nullptr) continue;
        visit(next.node.get(), stack);
        ++pending_[next.node.get()].waiting;
      }
    }
    if (wanted.empty()) return;
    for (const Wanted& w : wanted) {
      if (const auto found = pending_.find(w.node.get()); found != pending_.end()) found->second.useful = true;
    }
    // Producers are older than consumers, so that going from old to young sees every producer first.
    std::sort(order.begin(), order.end(), [](const Node* a, const Node* b) { return a->sequence() < b->sequence(); });
    std::unordered_map<const Node*, bool> leads;
    for (Node* node : order) {
      bool behind = false;
      for (const Edge& next : node->next()) {
        behind = behind || (next.node != nullptr && pending_[next.node.get()].useful) || leads[next.node.get()];
      }
      leads[node] = behind;
    }
    for (Node* node : order) pending_[node].useful = leads[node];
  }

  void visit(Node* node, std::vector<Node*>& stack) {
    const auto [entry, fresh] = pending_.try_emplace(node);
    if (!fresh) return;
    entry->second.grads.resize(node->outputs().size());
    stack.push_back(node);
  }

  /// Adds `grad` to what waits for `edge`. Never in place: the tensor may be the caller's, or shared.
  void deliver(const Edge& edge, const Tensor& grad, const Node* from) {
    const auto& info = edge.node->outputs()[static_cast<std::size_t>(edge.output)];
    if (grad.shape() != info.shape || grad.dtype() != info.options.dtype || !(grad.device() == info.options.device)) {
      fail<InternalError>("backward: ", from == nullptr ? "grad_output" : from->name(), " made a gradient ",
                          grad.describe(), " for ", edge.node->name(), ", which has ", name(info.options.dtype), " ",
                          info.shape, " on ", info.options.device);
    }
    // The node's stream goes on when the one that made the gradient has come this far.
    const Stream& stream = edge.node->stream();
    const bool one_device = from != nullptr && from->stream().device() == stream.device();
    stream.wait(one_device ? from->stream() : current_stream(stream.device()));
    Tensor& slot = pending_[edge.node.get()].grads[static_cast<std::size_t>(edge.output)];
    if (!slot.defined()) {
      slot = grad;
      return;
    }
    const StreamGuard stream_guard(stream);
    const GradGuard guard(create_graph_);
    slot = slot + grad;
  }

  /// `grad`, of an output of `node`, is complete: hooks, then whoever wants it.
  void finish(const Node& node, int output, Tensor& grad, bool passes, const std::vector<Wanted>& wanted,
              std::vector<Tensor>& results) {
    if (!grad.defined()) return;
    const auto is_this = [&](const Wanted& w) { return w.node.get() == &node && w.output == output; };
    const bool is_wanted = std::ranges::any_of(wanted, is_this);
    if (!passes && !is_wanted) return;
    grad = node.run_hooks(output, std::move(grad), create_graph_);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (is_this(wanted[i])) results[i] = grad;
    }
    if (is_wanted) caller_follows(node);
    const auto retain = node.outputs()[static_cast<std::size_t>(output)].retain.lock();
    if (retain != nullptr && wanted.empty()) add_to_grad(node, *retain, grad);
  }

  template <class Queue>
  void release_one(const Edge& edge, Queue& ready) {
    if (edge.node != nullptr && --pending_[edge.node.get()].waiting == 0) ready.push(edge.node);
  }

  void accumulate(const Node& node, Tensor grad) {
    const auto leaf = node.leaf.lock();
    if (leaf == nullptr || !grad.defined()) return;
    auto& state = static_cast<State&>(*leaf);
    std::shared_ptr<autograd::AfterHooks> hooks;
    {
      const std::lock_guard lock(state.mutex);
      if (state.accumulate.lock().get() != &node) {
        fail("backward: a leaf of this graph, ", name(node.outputs()[0].options.dtype), " ", node.outputs()[0].shape,
             " on ", node.outputs()[0].options.device, ", was moved or converted since; run forward again");
      }
      hooks = state.accumulated;
    }
    add_to_grad(node, *leaf, std::move(grad));
    if (hooks == nullptr) return;
    const NoGradGuard guard;
    for (const auto& hook : hooks->functions()) hook();
  }

  static void add_to_grad(const Node& node, AutogradState& state, Tensor grad) {
    {
      const StreamGuard guard(node.stream());
      static_cast<State&>(state).add_to_grad(std::move(grad));
    }
    caller_follows(node);
  }

  /// What the caller does next with results made on the node's stream waits for them.
  static void caller_follows(const Node& node) { current_stream(node.stream().device()).wait(node.stream()); }

  static void check_for_nan(const Node& node, const std::vector<Tensor>& grads) {
    for (std::size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      for (double v : grads[i].to_vector<double>()) {
        if (std::isnan(v)) fail("backward: ", node.name(), " made the first NaN, in the gradient of its input ", i);
      }
    }
  }

  bool keep_graph_, create_graph_;
  std::vector<Edge> roots_;
  std::vector<Tensor> seeds_;
  std::unordered_map<const Node*, Pending> pending_;
};

/// The gradient to start from for each output.
std::vector<Tensor> seeds_for(const char* op, const std::vector<Tensor>& outputs, const std::vector<Tensor>& grads) {
  if (!grads.empty() && grads.size() != outputs.size()) {
    fail(op, ": grad_outputs expected ", outputs.size(), " tensors, got ", grads.size());
  }
  std::vector<Tensor> seeds;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& output = outputs[i];
    if (!grads.empty() && grads[i].defined()) {
      if (grads[i].shape() != output.shape() || grads[i].dtype() != output.dtype() ||
          !(grads[i].device() == output.device())) {
        fail(op, ": grad_output expected ", output.describe(), ", got ", grads[i].describe());
      }
      seeds.push_back(grads[i]);
    } else if (output.numel() == 1) {
      seeds.push_back(ones(output.shape(), output.options()));
    } else {
      fail(op, ": grad_output expected for an output of more than one element, ", output.describe());
    }
  }
  return seeds;
}

}  // namespace

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs, const GradOptions& options) {
  const auto seeds = seeds_for("grad", outputs, grad_outputs);
  Run run(options.retain_graph || options.create_graph, options.create_graph);
  for (std::size_t i = 0; i < outputs.size(); ++i) run.seed(outputs[i], seeds[i]);
  std::vector<Wanted> wanted;
  for (const Tensor& input : inputs) {
    Edge edge = autograd::edge_of(input);
    if (edge.node == nullptr) fail("grad: input expected to require grad, got ", input.describe(), " without");
    wanted.push_back({std::move(edge.node), edge.output});
  }
  std::vector<Tensor> results = run.execute(wanted);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].defined()) continue;
    if (!options.allow_unused) {
      fail("grad: input ", i, " (", inputs[i].describe(),
           ") is not part of the graph of the outputs; allow_unused = true "
           "gives zeros");
    }
    results[i] = zeros_like(inputs[i]);
  }
  return results;
}

void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs, bool retain_graph) {
  const auto seeds = seeds_for("backward", outputs, grad_outputs);
  Run run(retain_graph, false);
  for (std::size_t i = 0; i < outputs.size(); ++i) run.seed(outputs[i], seeds[i]);
  run.execute({});
}

}  // namespace halo
