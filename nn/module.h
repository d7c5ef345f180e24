// Module: parameters, buffers and other modules under names.
//
// A net is a struct. Each register_ call gives a reference to what it registered, which is the member:
//
//   struct Net : nn::Module {
//     nn::Conv2d& conv = register_module("conv", nn::Conv2d(3, 16, 3, {.padding = 1}));
//     nn::Linear& head = register_module("head", nn::Linear(16, 10));
//     Tensor forward(const Tensor& x) override { return head(mean(relu(conv(x)), {2, 3})); }
//   };
#pragma once

#include <halo/core/state_dict.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace halo::nn {

/// A tensor with its name: "features.0.weight".
struct NamedParameter {
  std::string name;
  Tensor tensor;
};

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  // What is registered stays where it is when a module moves, so that the references to it hold.
  Module(Module&&) = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  Module& operator=(Module&&) = delete;

  /// What the module computes. A module with other arguments has a function of its own; this one throws then.
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x) { return forward(x); }

  // --- What is in it, its modules' own included ---------------------------------------------------------------------
  /// In the order of registration; a shared (tied) parameter once, under its first name.
  std::vector<NamedParameter> named_parameters() const;
  std::vector<Tensor> parameters() const;
  std::vector<NamedParameter> named_buffers() const;
  int64_t num_parameters() const;  ///< elements of all parameters
  /// Calls f(name, module) for this module (name "") and all below it.
  void for_each_module(const std::function<void(const std::string& name, Module& module)>& f);

  // --- State --------------------------------------------------------------------------------------------------------
  /// Parameters and buffers by name, shared ones under every name, without history but on the same memory. Buffers that
  /// were registered as not persistent are left out.
  StateDict state_dict() const;
  /// Copies values in, converting between floating types; nothing is changed where they do not fit. Of the names of a
  /// shared parameter one is enough; where there are several, their values must be equal.
  /// @throws ArgumentError listing what is missing, unexpected, of another shape or contradictory. `strict` false
  /// leaves what is missing as it is and ignores what is unexpected.
  void load_state_dict(const StateDict& state, bool strict = true);

  // --- Mode, place, gradients
  // -----------------------------------------------------------------------------------------
  /// Training (the start) or evaluation: what dropout and batch normalisation look at.
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }
  /// Moves parameters and buffers, which stay the same tensors: shared ones stay shared, and optimisers and hooks keep
  /// theirs. Gradients go with them.
  void to(Device device);
  /// Converts what is floating, likewise.
  void to(DType dtype);
  void zero_grad();
  /// Freezes (false) or frees all parameters.
  void requires_grad_(bool on = true);

 protected:
  /// Registers a trainable tensor; an undefined one keeps its place and is not listed. Assigning another module's
  /// parameter to the reference ties the two.
  Tensor& register_parameter(const std::string& name, const Tensor& value);
  /// Registers a tensor that is part of the state but not trained.
  Tensor& register_buffer(const std::string& name, const Tensor& value, bool persistent = true);
  /// Takes a module over: `nn::Linear& head = register_module("head", nn::Linear(16, 10));`
  template <std::derived_from<Module> T>
  T& register_module(const std::string& name, T&& module) {
    return register_module(name, std::make_unique<T>(std::move(module)));
  }
  template <std::derived_from<Module> T>
  T& register_module(const std::string& name, std::unique_ptr<T> module) {
    T& result = *module;
    add_module(name, std::move(module));
    return result;
  }
  /// The modules registered here, in order.
  std::vector<Module*> children() const;

 private:
  enum class Kind { Parameter, Buffer, HiddenBuffer };
  struct Entry {
    std::string name;
    Kind kind;
    std::unique_ptr<Tensor> tensor;  // apart, so that references to it hold
  };
  struct Child {
    std::string name;
    std::unique_ptr<Module> module;
  };

  Tensor& add_tensor(const std::string& name, Kind kind, const Tensor& value);
  void add_module(const std::string& name, std::unique_ptr<Module> module);
  void check_new_name(const std::string& name) const;
  /// Calls f(full name, entry) for every defined tensor here and below.
  void for_each_entry(const std::string& prefix, const std::function<void(const std::string&, const Entry&)>& f) const;
  void visit_modules(const std::string& prefix, const std::function<void(const std::string&, Module&)>& f);
  void convert_tensors(const std::function<Tensor(const Tensor&)>& convert);

  std::vector<Entry> entries_;
  std::vector<Child> children_;
  bool training_ = true;
};

/// Modules one after the other, named by their numbers: `nn::Sequential net(nn::Conv2d(3, 16, 3), nn::ReLU());`
class Sequential : public Module {
 public:
  template <std::derived_from<Module>... Modules>
  explicit Sequential(Modules&&... modules) {
    (push_back(std::move(modules)), ...);
  }

  /// Adds a module at the end and returns it.
  template <std::derived_from<Module> T>
  T& push_back(T&& module) {
    return register_module(std::to_string(size()), std::move(module));
  }

  Tensor forward(const Tensor& x) override;
  int64_t size() const { return static_cast<int64_t>(children().size()); }
  Module& operator[](int64_t index) const;
};

/// module(x) that keeps only x for backward and runs the module again then (autograd/checkpoint.h). The module lives
/// until then, and where it is.
Tensor checkpoint(Module& module, const Tensor& x);
/// modules(x) in `segments` pieces of like length, each a checkpoint: about the square root of the number of modules
/// needs least memory.
Tensor checkpoint_sequential(Sequential& modules, int64_t segments, const Tensor& x);

/// A list of modules of one type, named by their numbers; what runs them is up to the module that holds it.
template <std::derived_from<Module> T>
class ModuleList : public Module {
 public:
  T& push_back(T&& module) {
    modules_.push_back(&register_module(std::to_string(modules_.size()), std::move(module)));
    return *modules_.back();
  }
  std::size_t size() const { return modules_.size(); }
  T& operator[](std::size_t index) const { return *modules_[index]; }
  auto begin() const { return modules_.begin(); }
  auto end() const { return modules_.end(); }

 private:
  std::vector<T*> modules_;
};

}  // namespace halo::nn
