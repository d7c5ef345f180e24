// What plans of convolution kernels are kept by (runtime/plan_cache.h), and the bytes of common workspaces.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include "../runtime/plan_cache.h"
#include "../runtime/traits.h"

namespace halo::cuda::conv {

struct PlanKey {
  ConvProblem problem;
  ConvConfig config;
  DeviceTraits traits;  ///< all of them: plans fit the shared memory of the GPU that they were made for

  /// For the current device.
  PlanKey(const ConvProblem& p, const ConvConfig& c) : problem(p), config(c), traits(device_traits()) {}
  bool operator==(const PlanKey&) const = default;
};

struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const { return hash_value(key.problem); }
};

/// What `make` gives for a problem, a config and the current device, kept unless keep(plan) denies it.
template <auto make>
auto kept_plan(const ConvProblem& problem, const ConvConfig& config,
               bool (*keep)(const decltype(make(problem, config))&) = nullptr) {
  static PlanCache<PlanKey, decltype(make(problem, config)), PlanKeyHash> plans;
  return plans.get(
      {problem, config}, [](const PlanKey& key) { return make(key.problem, key.config); }, keep);
}

/// Whether the plan has blocks; if so, it is kept: of most problems most families have none.
template <auto make>
bool has_blocks(const ConvProblem& problem, const ConvConfig& config) {
  return kept_plan<make>(problem, config, [](const auto& plan) { return plan.blocks > 0; })->blocks > 0;
}

inline std::size_t no_workspace(const ConvProblem&, const ConvConfig&) { return 0; }
/// That of `splits` float64 sums of each weight.
inline std::size_t partial_bytes(const ConvProblem& problem, int64_t splits) {
  return static_cast<std::size_t>(problem.w_numel() * splits) * sizeof(double);
}

}  // namespace halo::cuda::conv
