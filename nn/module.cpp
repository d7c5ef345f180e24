#include <halo/autograd/checkpoint.h>
#include <halo/autograd/grad_mode.h>
#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/nn/module.h>

#include <algorithm>
#include <cstring>

namespace halo::nn {
namespace {

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

/// The place of `tensor` among `seen` (as handles), or its size.
std::size_t find_same(const std::vector<Tensor>& seen, const Tensor& tensor) {
  const auto found = std::find_if(seen.begin(), seen.end(), [&](const Tensor& other) { return other.is_same(tensor); });
  return static_cast<std::size_t>(found - seen.begin());
}

bool same_values(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const Tensor x = view::dense(convert(a, a.dtype(), Device::cpu()));
  const Tensor y = view::dense(convert(b, b.dtype(), Device::cpu()));
  return x.nbytes() == 0 || std::memcmp(x.data(), y.data(), x.nbytes()) == 0;
}

}  // namespace

Tensor Module::forward(const Tensor&) { fail("Module: this module has no forward of one tensor"); }

// --- Registration ---------------------------------------------------------------------------------------------------

void Module::check_new_name(const std::string& name) const {
  bool taken = false;
  for (const Entry& entry : entries_) taken = taken || entry.name == name;
  for (const Child& child : children_) taken = taken || child.name == name;
  if (taken || name.empty()) fail("Module: name expected new and not empty, got \"", name, "\"");
}

Tensor& Module::add_tensor(const std::string& name, Kind kind, const Tensor& value) {
  check_new_name(name);
  entries_.push_back({name, kind, std::make_unique<Tensor>(value)});
  return *entries_.back().tensor;
}

Tensor& Module::register_parameter(const std::string& name, const Tensor& value) {
  if (value.defined()) value.requires_grad_();
  return add_tensor(name, Kind::Parameter, value);
}

Tensor& Module::register_buffer(const std::string& name, const Tensor& value, bool persistent) {
  return add_tensor(name, persistent ? Kind::Buffer : Kind::HiddenBuffer, value);
}

void Module::add_module(const std::string& name, std::unique_ptr<Module> module) {
  check_new_name(name);
  children_.push_back({name, std::move(module)});
}

// --- Walks ----------------------------------------------------------------------------------------------------------

void Module::for_each_entry(const std::string& prefix,
                            const std::function<void(const std::string&, const Entry&)>& f) const {
  for (const Entry& entry : entries_) {
    if (entry.tensor->defined()) f(joined(prefix, entry.name), entry);
  }
  for (const Child& child : children_) child.module->for_each_entry(joined(prefix, child.name), f);
}

void Module::visit_modules(const std::string& prefix, const std::function<void(const std::string&, Module&)>& f) {
  f(prefix, *this);
  for (const Child& child : children_) child.module->visit_modules(joined(prefix, child.name), f);
}

void Module::for_each_module(const std::function<void(const std::string&, Module&)>& f) { visit_modules("", f); }

std::vector<Module*> Module::children() const {
  std::vector<Module*> modules;
  for (const Child& child : children_) modules.push_back(child.module.get());
  return modules;
}

std::vector<NamedParameter> Module::named_parameters() const {
  std::vector<NamedParameter> result;
  std::vector<Tensor> seen;
  for_each_entry("", [&](const std::string& name, const Entry& entry) {
    if (entry.kind != Kind::Parameter || find_same(seen, *entry.tensor) != seen.size()) return;
    seen.push_back(*entry.tensor);
    result.push_back({name, *entry.tensor});
  });
  return result;
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> result;
  for (const NamedParameter& parameter : named_parameters()) result.push_back(parameter.tensor);
  return result;
}

std::vector<NamedParameter> Module::named_buffers() const {
  std::vector<NamedParameter> result;
  for_each_entry("", [&](const std::string& name, const Entry& entry) {
    if (entry.kind != Kind::Parameter) result.push_back({name, *entry.tensor});
  });
  return result;
}

int64_t Module::num_parameters() const {
  int64_t count = 0;
  for (const Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

// --- State ----------------------------------------------------------------------------------------------------------

StateDict Module::state_dict() const {
  StateDict state;
  for_each_entry("", [&](const std::string& name, const Entry& entry) {
    if (entry.kind != Kind::HiddenBuffer) state.emplace(name, view::alias(*entry.tensor));
  });
  return state;
}

void Module::load_state_dict(const StateDict& state, bool strict) {
  struct Target {
    std::string name;  // the first of a shared tensor's
    Tensor value;      // what it gets; undefined: nothing under any of its names
  };
  std::vector<Tensor> tensors;
  std::vector<Target> targets;  // of `tensors`
  StateDict unexpected = state;
  std::string faults;
  for_each_entry("", [&](const std::string& name, const Entry& entry) {
    if (entry.kind == Kind::HiddenBuffer) return;
    const Tensor& tensor = *entry.tensor;
    const std::size_t place = find_same(tensors, tensor);
    if (place == tensors.size()) {
      tensors.push_back(tensor);
      targets.push_back({name, {}});
    }
    const auto found = unexpected.extract(name);
    if (found.empty()) return;
    const Tensor& value = found.mapped();
    if (!value.defined() || value.shape() != tensor.shape() ||
        is_floating_point(value.dtype()) != is_floating_point(tensor.dtype())) {
      faults += concat("\n  ", name, ": expected ", tensor.describe(), ", got ", value.describe());
    } else if (targets[place].value.defined() && !same_values(targets[place].value, value)) {
      faults += concat("\n  ", name, ": expected the values of ", targets[place].name,
                       ", with which the module shares it, got others");
    }
    targets[place].value = value;
  });
  if (strict) {
    for (const Target& target : targets) {
      if (!target.value.defined()) faults += concat("\n  missing: ", target.name);
    }
    for (const auto& [name, tensor] : unexpected) faults += concat("\n  unexpected: ", name);
  }
  if (!faults.empty()) fail("load_state_dict: the state does not fit the module:", faults);
  const NoGradGuard guard;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (targets[i].value.defined()) tensors[i].copy_(targets[i].value);
  }
}

// --- Mode, place, gradients -----------------------------------------------------------------------------------------

void Module::train(bool on) {
  for_each_module([on](const std::string&, Module& module) { module.training_ = on; });
}

void Module::convert_tensors(const std::function<Tensor(const Tensor&)>& convert) {
  std::vector<Tensor> done;  // shared ones once
  for_each_entry("", [&](const std::string&, const Entry& entry) {
    const Tensor& tensor = *entry.tensor;
    if (find_same(done, tensor) != done.size()) return;
    done.push_back(tensor);
    const Tensor converted = convert(tensor);
    if (converted.is_same(tensor)) return;
    const Tensor grad = tensor.grad();
    tensor.set_data(converted);
    if (grad.defined()) tensor.set_grad(convert(grad));
  });
}

void Module::to(Device device) {
  convert_tensors([device](const Tensor& t) { return convert(t, t.dtype(), device); });
}

void Module::to(DType dtype) {
  if (!is_floating_point(dtype)) fail("Module::to: dtype expected a floating type, got ", name(dtype));
  convert_tensors(
      [dtype](const Tensor& t) { return is_floating_point(t.dtype()) ? convert(t, dtype, t.device()) : t; });
}

void Module::zero_grad() {
  for (const Tensor& parameter : parameters()) parameter.set_grad({});
}

void Module::requires_grad_(bool on) {
  for (const Tensor& parameter : parameters()) parameter.requires_grad_(on);
}

// --- Checkpoints ----------------------------------------------------------------------------------------------------

Tensor checkpoint(Module& module, const Tensor& x) {
  return halo::checkpoint([&module](const Tensor& input) { return module.forward(input); }, x);
}

Tensor checkpoint_sequential(Sequential& modules, int64_t segments, const Tensor& x) {
  if (segments < 1) fail("checkpoint_sequential: segments expected 1 or more, got ", segments);
  Tensor result = x;
  for (int64_t i = 0; i < segments; ++i) {
    const int64_t begin = modules.size() * i / segments, end = modules.size() * (i + 1) / segments;
    if (begin == end) continue;
    result = halo::checkpoint(
        [&modules, begin, end](const Tensor& input) {
          Tensor t = input;
          for (int64_t k = begin; k < end; ++k) t = modules[k].forward(t);
          return t;
        },
        result);
  }
  return result;
}

// --- Sequential -----------------------------------------------------------------------------------------------------

Tensor Sequential::forward(const Tensor& x) {
  Tensor result = x;
  for (Module* module : children()) result = module->forward(result);
  return result;
}

Module& Sequential::operator[](int64_t index) const {
  if (index < 0 || index >= size()) fail("Sequential: index expected below ", size(), ", got ", index);
  return *children()[static_cast<std::size_t>(index)];
}

}  // namespace halo::nn
