// StateDict: tensors by name.
#pragma once

#include <halo/core/tensor.h>

#include <map>
#include <string>

namespace halo {

/// Tensors by name: what a module or an optimiser is made of, and what a file holds.
using StateDict = std::map<std::string, Tensor>;
/// Free text by name that a file carries beside its tensors.
using Metadata = std::map<std::string, std::string>;

}  // namespace halo
