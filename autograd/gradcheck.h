// Checking gradients against numerical ones.
#pragma once

#include <halo/core/tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace halo {

struct GradcheckOptions {
  double step = 1e-6;
  double tolerance = 1e-6;  ///< relative to the larger of 1 and the largest numerical entry
  bool second_order = true;
  uint64_t seed = 0;  ///< of the random cotangents
};

struct GradcheckResult {
  bool ok = true;
  double worst = 0;     ///< largest error found, as tolerance measures it
  std::string message;  ///< which order, input and element was worst, with both values
};

/// Compares the gradients of `f` at `inputs` (float64; those that require grad are checked) with central differences,
/// for a random cotangent, and (second order) the gradients of those gradients likewise. `f` must be deterministic.
/// @throws ArgumentError for an input of another dtype.
GradcheckResult gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& f, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {});

}  // namespace halo
