// StateDict: tensors by name.
#pragma once

#include <halo/core/tensor.h>

#include <map>
#include <string>

namespace halo {

/// Tensors by name: what a module or an optimiser is made of, and what a file holds.
using StateDict = std::map<std::string, Tensor>;
/// The same names with values in memory of their own: a state to come back to (a module's and an optimiser's own
/// states share memory with them). Dense, without history; undefined tensors stay undefined.
StateDict clone(const StateDict& state);
/// Free text by name that a file carries beside its tensors.
using Metadata = std::map<std::string, std::string>;

}  // namespace halo
