// What every optimiser is: parameters in groups, options a group, state a parameter.
#pragma once

#include <halo/core/state_dict.h>

#include <cstdint>
#include <string>
#include <vector>

namespace halo::optim {

/// Parameters that share options: `ParamGroup<AdamOptions>{net.parameters(), {.lr = 1e-4}}`.
template <class Options>
struct ParamGroup {
  std::vector<Tensor> params;
  Options options{};
};

/// Base of all optimisers.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update of every parameter that has a gradient. Parameters that were moved or converted since (Module::to) stay
  /// its own, and their state follows.
  void step();
  /// Forgets the gradients of all parameters.
  void zero_grad();

  int groups() const { return static_cast<int>(groups_.size()); }
  const std::vector<Tensor>& params(int group = 0) const;
  double lr(int group = 0) const;
  void set_lr(double lr, int group = 0);
  /// The learning rate the group started with: what schedules multiply.
  double initial_lr(int group = 0) const;

  /// Options of every group (`group.0.lr`) and state of every parameter that has been updated (`state.3.exp_avg`, by
  /// its number over all groups). Shares memory with the optimiser.
  StateDict state_dict() const;
  /// Copies a state in; nothing is changed where it does not fit. The same bits follow as if training had gone on.
  /// @throws ArgumentError listing what is missing, unexpected or of another shape.
  void load_state_dict(const StateDict& state);

 protected:
  /// `state_names`: the tensors kept for a parameter, zeros at first.
  Optimizer(const char* name, const std::vector<std::vector<Tensor>>& groups, std::vector<std::string> state_names);

  /// A parameter with its state.
  struct Slot {
    Tensor param;
    int64_t step = 0;  ///< updates so far, the current one included
    std::vector<Tensor> state{};
  };
  /// The parameters of `groups`, and their options.
  template <class Options>
  static std::vector<std::vector<Tensor>> params_of(const std::vector<ParamGroup<Options>>& groups) {
    std::vector<std::vector<Tensor>> params;
    for (const auto& group : groups) params.push_back(group.params);
    return params;
  }
  template <class Options>
  static std::vector<Options> options_of(const std::vector<ParamGroup<Options>>& groups) {
    std::vector<Options> options;
    for (const auto& group : groups) options.push_back(group.options);
    return options;
  }
  /// An option under the name it is saved by.
  struct Option {
    const char* name;
    double* value;
  };

  /// Names the options of the next group, the learning rate first; they live as long as the optimiser. Called by the
  /// constructors of optimisers, once a group.
  void register_options(const std::vector<Option>& options);
  /// Updates `slots`, parameters of `group` that have a gradient, with recording off.
  virtual void update(int group, const std::vector<Slot*>& slots) = 0;

 private:
  struct Group {
    std::vector<Tensor> params;
    std::size_t first_slot = 0;
    double initial_lr = 0;
    std::vector<Option> options{};
  };
  const Group& group(int index) const;
  void check_dtype(const Tensor& param) const;

  std::string name_;
  std::vector<std::string> state_names_;
  std::vector<Group> groups_;
  std::vector<Slot> slots_;  // of all groups, in order
};

}  // namespace halo::optim
