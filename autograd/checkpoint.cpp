#include <halo/autograd/checkpoint.h>
#include <halo/autograd/grad_mode.h>
#include <halo/autograd/node.h>
#include <halo/autograd/saved_slot.h>
#include <halo/core/draw_log.h>
#include <halo/core/error.h>
#include <halo/core/stream.h>
#include <halo/core/thread_modes.h>
#include <halo/core/view.h>

#include <algorithm>
#include <deque>
#include <mutex>

namespace halo {
namespace autograd {

/// One call of checkpoint(): what it takes to run the function again, and the places of what it saved.
class CheckpointFrame : public std::enable_shared_from_this<CheckpointFrame> {
 public:
  CheckpointFrame(CheckpointFunction f, const std::vector<Tensor>& inputs) : f_(std::move(f)), modes_(thread_modes()) {
    modes_.grad = 1;
    modes_.precision = static_cast<int>(precision());
    for (const Tensor& input : inputs) {
      inputs_.emplace_back(input);
      if (!input.defined() || input.device().is_cpu()) continue;
      const Stream stream = current_stream(input.device());
      if (std::ranges::find(streams_, stream) == streams_.end()) streams_.push_back(stream);
    }
  }

  std::vector<Tensor> run(const std::vector<Tensor>& inputs);
  std::shared_ptr<SavedSlot> place(const Tensor& tensor);
  void note_leaf(const Tensor& leaf);
  Tensor value(SavedSlot& slot, bool drop);

 private:
  void run_again();
  void check_leaves() const;
  void fill_next(const Tensor& tensor);

  struct Leaf {
    std::weak_ptr<Storage> storage;
    uint64_t version;
  };

  CheckpointFunction f_;
  std::vector<SavedTensor> inputs_;
  ThreadModes modes_;
  std::vector<Stream> streams_;  ///< of the devices of the inputs
  DrawLog draws_;
  std::vector<Leaf> leaves_;                     ///< that the function read
  std::vector<std::weak_ptr<SavedSlot>> slots_;  ///< in the order they were saved; null where the tensor was kept
  std::mutex mutex_;                             ///< of the second run and the values it makes
  bool running_ = false;                         ///< the first time
};

namespace {

/// What the checkpoints of this thread are doing: the innermost counts.
struct Scope {
  enum class Run { First, Again };
  Scope(CheckpointFrame& of, Run which);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  CheckpointFrame& frame;
  Run run;
  std::size_t next = 0;  ///< slot to be filled
  Scope* outer;
  bool recomputing;  ///< this one or one around it is run again
};
thread_local Scope* scope = nullptr;

Scope::Scope(CheckpointFrame& of, Run which)
    : frame(of), run(which), outer(scope), recomputing(run == Run::Again || (outer != nullptr && outer->recomputing)) {
  scope = this;
}
Scope::~Scope() { scope = outer; }

/// The modes of a thread for a scope.
class ModesScope {
 public:
  explicit ModesScope(const ThreadModes& modes) : previous_(thread_modes()) { thread_modes() = modes; }
  ~ModesScope() { thread_modes() = previous_; }
  ModesScope(const ModesScope&) = delete;
  ModesScope& operator=(const ModesScope&) = delete;

 private:
  ThreadModes previous_;
};

constexpr const char* kOther =
    "checkpoint: the function expected to do the same when it is run again for backward, but it ";

}  // namespace

std::vector<Tensor> CheckpointFrame::run(const std::vector<Tensor>& inputs) {
  const Scope in(*this, Scope::Run::First);
  const DrawScope draws(draws_, DrawScope::Mode::Record);
  running_ = true;
  std::vector<Tensor> results = f_(inputs);
  running_ = false;
  for (const auto& weak : slots_) {
    if (const auto slot = weak.lock()) slot->value_ = {};
  }
  return results;
}

std::shared_ptr<SavedSlot> CheckpointFrame::place(const Tensor& tensor) {
  if (scope->run == Scope::Run::Again) {
    fill_next(tensor);
    return nullptr;
  }
  // Parameters are there anyway, and kept they tell whether they were changed.
  const State* state = state_of(tensor);
  const bool parameter = state != nullptr && state->requires_grad && state->edge.node == nullptr;
  std::shared_ptr<SavedSlot> slot;
  if (!parameter) {
    slot.reset(new SavedSlot(shared_from_this(), tensor));
    slot->value_ = view::alias(tensor);  // until the function returns, as it may run backward itself
  }
  slots_.push_back(slot);
  return slot;
}

void CheckpointFrame::fill_next(const Tensor& tensor) {
  const std::size_t index = scope->next++;
  if (index >= slots_.size()) fail(kOther, "saved more than ", slots_.size(), " tensors");
  const auto slot = slots_[index].lock();
  if (slot == nullptr) return;
  const uint64_t version = tensor.storage()->version();
  if (tensor.describe() != slot->description_) {
    fail(kOther, "saved ", tensor.describe(), " instead of ", slot->description_);
  }
  if (version != slot->version_) {
    fail("checkpoint: ", slot->description_, " was changed in place after the function used it (version ",
         slot->version_, " then, ", version, " now)");
  }
  slot->value_ = view::alias(tensor);
}

void CheckpointFrame::note_leaf(const Tensor& leaf) {
  if (scope->run == Scope::Run::First) leaves_.push_back({leaf.storage(), leaf.storage()->version()});
}

void CheckpointFrame::check_leaves() const {
  for (const Leaf& leaf : leaves_) {
    const auto storage = leaf.storage.lock();
    if (storage != nullptr && storage->version() != leaf.version) {
      fail("checkpoint: a leaf that the function uses was changed in place before backward (version ", leaf.version,
           " then, ", storage->version(), " now); backward comes before the optimiser's step");
    }
  }
}

Tensor CheckpointFrame::value(SavedSlot& slot, bool drop) {
  const std::lock_guard lock(mutex_);
  if (!running_ && !slot.value_.defined()) run_again();
  return drop && !running_ ? std::exchange(slot.value_, {}) : slot.value_;
}

void CheckpointFrame::run_again() {
  check_leaves();
  std::vector<Tensor> inputs;
  for (const SavedTensor& input : inputs_) inputs.push_back(input.value("checkpoint", false));
  // On the streams of the first run, in order with those that backward runs on.
  std::deque<StreamGuard> guards;
  std::vector<Stream> callers;
  for (const Stream& stream : streams_) {
    callers.push_back(current_stream(stream.device()));
    stream.wait(callers.back());
    guards.emplace_back(stream);
  }
  {
    const ModesScope modes(modes_);
    const DrawScope draws(draws_, DrawScope::Mode::Replay);
    const Scope again(*this, Scope::Run::Again);
    f_(inputs);
    if (again.next != slots_.size()) fail(kOther, "saved ", again.next, " tensors instead of ", slots_.size());
  }
  for (std::size_t i = 0; i < streams_.size(); ++i) callers[i].wait(streams_[i]);
}

SavedSlot::SavedSlot(std::shared_ptr<CheckpointFrame> frame, const Tensor& tensor)
    : frame_(std::move(frame)),
      description_(tensor.describe()),
      version_(tensor.storage()->version()),
      state_(tensor.autograd_state()) {}

std::shared_ptr<SavedSlot> SavedSlot::place(const Tensor& tensor) {
  return scope == nullptr ? nullptr : scope->frame.place(tensor);
}

Tensor SavedSlot::value(bool drop) {
  Tensor result = view::alias(frame_->value(*this, drop));
  result.set_autograd_state(state_);
  return result;
}

void note_leaves(const std::vector<Tensor>& inputs) {
  if (scope == nullptr) return;
  for (const Tensor& input : inputs) {
    if (input.defined() && input.requires_grad() && input.is_leaf()) scope->frame.note_leaf(input);
  }
}

}  // namespace autograd

std::vector<Tensor> checkpoint(CheckpointFunction f, const std::vector<Tensor>& inputs) {
  if (f == nullptr) fail("checkpoint: f expected a function, got none");
  if (!grad_enabled()) return f(inputs);
  return std::make_shared<autograd::CheckpointFrame>(std::move(f), inputs)->run(inputs);
}

bool is_recomputing() { return autograd::scope != nullptr && autograd::scope->recomputing; }

}  // namespace halo
