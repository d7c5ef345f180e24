// What plans of convolution kernels are kept by (runtime/plan_cache.h).
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include "../runtime/plan_cache.h"
#include "../runtime/traits.h"

namespace halo::cuda::conv {

struct PlanKey {
  ConvProblem problem;
  ConvConfig config;  ///< without bias and activation, which no plan depends on
  bool hopper;
  int multiprocessors;

  /// For the current device.
  PlanKey(const ConvProblem& p, const ConvConfig& c)
      : problem(p), config(c), hopper(device_traits().is_hopper()), multiprocessors(device_traits().multiprocessors) {
    config.bias = false;
    config.activation = {};
  }
  bool operator==(const PlanKey&) const = default;
};

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const { return hash_value(key.problem); }
};

template <class Plan>
using ConvPlanCache = PlanCache<PlanKey, Plan, PlanKeyHash>;

}  // namespace halo::cuda::conv
