#include <halo/autograd/grad_mode.h>
#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/optim/optimizer.h>

#include <set>

namespace halo::optim {

Optimizer::Optimizer(const char* name, const std::vector<std::vector<Tensor>>& groups,
                     std::vector<std::string> state_names)
    : name_(name), state_names_(std::move(state_names)) {
  for (const std::vector<Tensor>& params : groups) {
    groups_.push_back({.params = params, .first_slot = slots_.size()});
    for (const Tensor& param : params) {
      if (!param.defined() || !is_floating_point(param.dtype()) || !param.is_leaf()) {
        fail(name_, ": params expected floating leaves, got ", param.describe());
      }
      check_dtype(param);
      for (const Slot& other : slots_) {
        if (other.param.is_same(param)) fail(name_, ": params expected each once, got ", param.describe(), " twice");
      }
      slots_.push_back({.param = param});
    }
  }
}

void Optimizer::check_dtype(const Tensor& param) const {
  if (param.dtype() == DType::Float32 || param.dtype() == DType::Float64) return;
  fail(name_, ": params expected float32 or float64, got ", param.describe(),
       "; keep the weights in float32 and convert what should be short where it is used");
}

void Optimizer::register_options(const std::vector<Option>& options) {
  for (Group& next : groups_) {
    if (!next.options.empty()) continue;
    next.options = options;
    next.initial_lr = *options[0].value;
    return;
  }
  fail<InternalError>(name_, ": register_options: more calls than groups");
}

const Optimizer::Group& Optimizer::group(int index) const {
  if (index < 0 || index >= groups()) fail(name_, ": group expected below ", groups(), ", got ", index);
  return groups_[static_cast<std::size_t>(index)];
}

const std::vector<Tensor>& Optimizer::params(int index) const { return group(index).params; }
double Optimizer::initial_lr(int index) const { return group(index).initial_lr; }
double Optimizer::lr(int index) const { return *group(index).options[0].value; }
void Optimizer::set_lr(double lr, int index) { *group(index).options[0].value = lr; }

void Optimizer::step() {
  const NoGradGuard guard;
  for (int i = 0; i < groups(); ++i) {
    std::vector<Slot*> ready;
    for (std::size_t k = 0; k < group(i).params.size(); ++k) {
      Slot& slot = slots_[group(i).first_slot + k];
      if (!slot.param.grad().defined()) continue;
      check_dtype(slot.param);
      // The state follows a parameter that was moved or converted.
      for (Tensor& t : slot.state) t = convert(t, slot.param.dtype(), slot.param.device());
      while (slot.state.size() < state_names_.size()) slot.state.push_back(zeros_like(slot.param));
      ++slot.step;
      ready.push_back(&slot);
    }
    if (!ready.empty()) update(i, ready);
  }
}

void Optimizer::zero_grad() {
  for (const Slot& slot : slots_) slot.param.set_grad({});
}

StateDict Optimizer::state_dict() const {
  StateDict state;
  const auto number = [](double value) { return full({}, value, {.dtype = DType::Float64}); };
  for (int i = 0; i < groups(); ++i) {
    state.emplace(concat("group.", i, ".initial_lr"), number(group(i).initial_lr));
    for (const Option& option : group(i).options) {
      state.emplace(concat("group.", i, ".", option.name), number(*option.value));
    }
  }
  for (std::size_t k = 0; k < slots_.size(); ++k) {
    if (slots_[k].step == 0) continue;
    state.emplace(concat("state.", k, ".step"), full({}, slots_[k].step, {.dtype = DType::Int64}));
    for (std::size_t j = 0; j < state_names_.size(); ++j) {
      state.emplace(concat("state.", k, ".", state_names_[j]), slots_[k].state[j]);
    }
  }
  return state;
}

void Optimizer::load_state_dict(const StateDict& state) {
  std::set<std::string> used;
  std::string faults;
  // The tensor of that name, checked; undefined (and a fault noted) where there is none that fits.
  const auto take = [&](const std::string& name, const Shape& shape) {
    const auto found = state.find(name);
    if (found == state.end()) {
      faults += concat("\n  missing: ", name);
      return Tensor();
    }
    used.insert(name);
    if (found->second.shape() == shape) return found->second;
    faults += concat("\n  ", name, ": expected shape ", shape, ", got ", found->second.describe());
    return Tensor();
  };

  std::vector<std::pair<double*, Tensor>> numbers;
  for (int i = 0; i < groups(); ++i) {
    Group& target = groups_[static_cast<std::size_t>(i)];
    numbers.emplace_back(&target.initial_lr, take(concat("group.", i, ".initial_lr"), {}));
    for (const Option& option : target.options) {
      numbers.emplace_back(option.value, take(concat("group.", i, ".", option.name), {}));
    }
  }
  std::vector<Slot> loaded;
  for (std::size_t k = 0; k < slots_.size(); ++k) {
    const Tensor& param = slots_[k].param;
    loaded.push_back({.param = param});
    const std::string step_name = concat("state.", k, ".step");
    if (!state.contains(step_name)) continue;  // a parameter that was never updated
    if (const Tensor step = take(step_name, {}); step.defined()) loaded[k].step = step.to_vector<int64_t>()[0];
    for (const std::string& name : state_names_) {
      const Tensor values = take(concat("state.", k, ".", name), param.shape());
      if (!values.defined()) continue;
      loaded[k].state.push_back(empty_like(param));
      copy(values, loaded[k].state.back());
    }
  }
  for (const auto& [name, tensor] : state) {
    if (!used.contains(name)) faults += concat("\n  unexpected: ", name);
  }
  if (!faults.empty()) fail(name_, ": load_state_dict: the state does not fit:", faults);
  for (const auto& [target, value] : numbers) *target = value.item();
  slots_ = std::move(loaded);
}

}  // namespace halo::optim
