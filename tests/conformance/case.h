// One reference case: a safetensors file with inputs, expected outputs and expected gradients, and the parameters of
// the operation in its metadata.
#pragma once

#include <halo/core/tensor.h>
#include <halo/ops/conv_problem.h>

#include <map>
#include <string>
#include <vector>

namespace halo::conformance {

/// Where and in what type a case is run.
struct Setting {
  Device device = Device::cpu();
  DType dtype = DType::Float64;
};

class Case {
 public:
  /// Reads a file. @throws FileError where it is no safetensors file.
  Case(const std::string& path, const Setting& setting);

  const std::string& name() const { return name_; }
  const std::string& op() const { return op_; }

  // --- Tensors ------------------------------------------------------------------------------------------------------
  bool has(const std::string& tensor) const { return tensors_.contains(tensor); }
  /// A floating input in the setting's dtype and device; a leaf where the file expects its gradient. The same handle
  /// each time. @throws ArgumentError where the file lacks it.
  Tensor input(const std::string& tensor);
  /// The same, or the undefined tensor.
  Tensor optional(const std::string& tensor) { return has(tensor) ? input(tensor) : Tensor(); }
  /// An input as stored (indices, targets), on the setting's device.
  Tensor raw(const std::string& tensor) const;
  /// Every tensor by name: expectations among them.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  /// Inputs handed out so far whose gradient is expected.
  const std::vector<std::pair<std::string, Tensor>>& leaves() const { return leaves_; }
  const Setting& setting() const { return setting_; }

  // --- Parameters: PyTorch's names; what is not written has the default given
  // -----------------------------------------
  bool has_parameter(const std::string& key) const { return metadata_.contains(key); }
  std::string text(const std::string& key, const std::string& missing) const;
  double real(const std::string& key, double missing) const;
  int64_t integer(const std::string& key, int64_t missing) const;
  bool flag(const std::string& key, bool missing) const;
  /// One number or a comma list.
  std::vector<int64_t> integers(const std::string& key, const std::vector<int64_t>& missing) const;
  /// stride, padding (numbers, pairs, same, valid), dilation, groups, output_padding for `rank` axes.
  ConvOptions conv_options(int rank) const;

 private:
  std::string name_, op_;
  Setting setting_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::pair<std::string, Tensor>> leaves_;
  std::map<std::string, Tensor> inputs_;
};

/// What running an operation gave: its outputs by the names the file expects, and the one that is differentiated, with
/// its upstream gradient (undefined: one).
struct Result {
  std::map<std::string, Tensor> outputs;
  Tensor root;
  Tensor root_grad;
};

/// Runs the case's operation. False where Halo has no operation of that name.
bool run_operation(Case& c, Result& result);

/// The largest relative Frobenius error over everything the file expects; infinity for NaN, a wrong shape or something
/// missing. `worst` names the tensor.
double largest_error(Case& c, const Result& result, std::string& worst);

}  // namespace halo::conformance
