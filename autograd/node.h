// The tape. A Node is one recorded operation: where its inputs came from, and how to turn the gradient of its outputs
// into gradients of its inputs. For authors of differentiable functions; users need only functions, grad and backward.
#pragma once

#include <halo/core/precision.h>
#include <halo/core/stream.h>
#include <halo/core/tensor.h>
#include <halo/ops/weight_use.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace halo::autograd {

class Node;
class SavedSlot;
template <class Function>
class HookList;
using GradHooks = HookList<GradHook>;
using AfterHooks = HookList<std::function<void()>>;

/// Output `output` of `node`: where a tensor's gradient goes. A null node: no gradient wanted.
struct Edge {
  std::shared_ptr<Node> node;
  int output = 0;
};

/// What a backward closure is told beside the upstream gradients.
struct BackwardContext {
  const Node& node;
  bool create_graph;
  bool retain_graph;  ///< backward may come again
  /// Whether input `i` wants a gradient; an undefined tensor may be returned for one that does not.
  bool needs(std::size_t i) const;
};

/// Upstream gradients, one an output (never undefined: zeros stand in), to one gradient an input.
using Backward = std::function<std::vector<Tensor>(const std::vector<Tensor>& grads, const BackwardContext& context)>;

class Node : public std::enable_shared_from_this<Node> {
 public:
  /// Nodes are made here alone: their release is iterative, so that the length of a graph is not the depth of the
  /// stack.
  static std::shared_ptr<Node> create(std::string name, std::vector<Edge> next, Backward backward);

  const std::string& name() const { return name_; }
  const std::vector<Edge>& next() const { return next_; }
  uint64_t sequence() const { return sequence_; }  ///< later nodes have larger numbers

  /// What is known of an output.
  struct OutputInfo {
    Shape shape;  ///< and options: for zeros where it got no gradient
    TensorOptions options;
    std::shared_ptr<GradHooks> hooks{};     ///< null where there are none; a leaf's are in its State
    std::weak_ptr<AutogradState> retain{};  ///< whose grad this output's gradient is added to
  };
  int add_output(const Tensor& output);
  const std::vector<OutputInfo>& outputs() const { return outputs_; }
  OutputInfo& output(int index) { return outputs_[static_cast<std::size_t>(index)]; }
  /// The current stream of the outputs' device when the node was made.
  const Stream& stream() const { return streams_.front(); }

  /// Runs the closure with the precision and stream in force when the node was made.
  std::vector<Tensor> run(std::vector<Tensor> grads, bool create_graph, bool retain_graph) const;
  /// What the hooks on an output make of its gradient, run likewise.
  Tensor run_hooks(int output, Tensor grad, bool create_graph) const;
  /// Drops the closure and what it saved, and the hooks.
  void release();

  /// Set on the node of a leaf: where its gradient is accumulated.
  std::weak_ptr<AutogradState> leaf;

 private:
  Node() = default;
  std::string name_;
  std::vector<Edge> next_;
  Backward backward_;
  std::vector<OutputInfo> outputs_;
  uint64_t sequence_ = 0;
  Precision precision_ = Precision::Float32;
  std::vector<Stream> streams_;  ///< one
};

/// Autograd's part of a tensor.
struct State : AutogradState {
  bool requires_grad = false;
  Edge edge;  ///< of a result: the node that made it

  std::mutex mutex;  ///< guards what is below: several threads may run backward into one leaf
  Tensor grad;
  std::weak_ptr<Node> accumulate;             ///< of a leaf
  std::shared_ptr<GradHooks> hooks;           ///< of a leaf; null where there are none
  std::shared_ptr<AfterHooks> accumulated{};  ///< likewise: called after each accumulation

  /// grad += `gradient`. A gradient that others can see is copied first.
  void add_to_grad(Tensor gradient);
};

State* state_of(const Tensor& tensor);
/// Where the gradient of `tensor` goes; makes a leaf's node on first use. A null node where none is wanted.
Edge edge_of(const Tensor& tensor);

/// A tensor kept for backward. Knows if it was changed in place since. In a checkpoint (autograd/checkpoint.h) it keeps
/// no value but asks for it to be made again.
class SavedTensor {
 public:
  SavedTensor() = default;
  /// Keeps an input (or any tensor that is not an output of the node being recorded).
  explicit SavedTensor(const Tensor& tensor);
  /// Keeps output number `index` of the node being recorded, without keeping the node alive through itself.
  static SavedTensor output(const Tensor& tensor, int index = 0);
  bool defined() const { return tensor_.defined() || slot_ != nullptr; }
  /// @throws ArgumentError naming the operation, the tensor and both versions if it was changed in place.
  Tensor unpack(const BackwardContext& context) const;
  /// The same of an input, for `user`, who is named in the error. `last`: nobody asks again before the graph is
  /// released.
  Tensor value(const std::string& user, bool last) const;

 private:
  Tensor tensor_;
  std::shared_ptr<SavedSlot> slot_;  ///< in a checkpoint, instead of the tensor
  uint64_t version_ = 0;
  int output_ = -1;
};

/// Whether recording is on and any of `inputs` wants a gradient.
bool should_record(const std::vector<Tensor>& inputs);

/// Again for a parameter (a leaf that was made to require a gradient, frozen or not) while nothing is recorded, as in
/// inference; else Once.
WeightUse weight_use(const Tensor& weight);

/// Makes `outputs` (fresh results of plain ops) the outputs of a new node named `name` with the given inputs. Does
/// nothing where should_record is false. A closure with one upstream gradient may take `const Tensor&`.
void record(const char* name, const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs, Backward backward);
/// The same for one output, which is returned.
Tensor record(const char* name, const std::vector<Tensor>& inputs, const Tensor& output,
              std::function<std::vector<Tensor>(const Tensor& grad, const BackwardContext& context)> backward);

/// Nodes alive in the process: for leak tests.
int64_t live_nodes();

}  // namespace halo::autograd
