// The host half of kernel families whose plan, with `blocks` (0 where there is none) and `predicted_ms`, says all.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include "../launch.h"
#include "plain_sum.cuh"
#include "plan_key.h"
#include "small_groups/small_groups.h"
#include "storage.h"

namespace halo::cuda::conv {

/// What forward or backward_input reads and writes.
template <class T>
small_groups::GatherArguments<T> gather_arguments(const ConvConfig& config, const Operands& operands) {
  const auto* const w = static_cast<const T*>(operands.w);
  auto *const x = static_cast<T*>(operands.x), *const y = static_cast<T*>(operands.y);
  if (config.pass != ConvPass::Forward) return {y, w, nullptr, x, {}};
  return {x, w, static_cast<const T*>(operands.bias), y, config.activation};
}

/// A call of forward or backward_input. Split: as dispatch_products has it.
template <class T, bool Split>
struct GatherCall {
  small_groups::GatherArguments<T> arguments;
  PlainSumOf<T> plain;  ///< of the same
  cudaStream_t stream;

  GatherCall(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream)
      : arguments(gather_arguments<T>(config, operands)),
        plain{Sizes(problem), arguments.source, arguments.weight, config.pass == ConvPass::Forward},
        stream(stream) {}
};

/// A call of backward_weight.
template <class T, bool Split>
struct WeightCall {
  const ConvProblem& problem;
  const ConvConfig& config;
  const Operands& operands;
  cudaStream_t stream;
};

/// One kernel without workspace for forward, backward_input or both, which start(plan, GatherCall<T, Split>) starts.
template <auto make, class Start>
constexpr Algorithm gather_family(const char* name, Start) {
  return {name, has_blocks<make>, no_workspace,
          [](const ConvProblem& p, const ConvConfig& c) { return kept_plan<make>(p, c)->predicted_ms; },
          [](const ConvProblem& p, const ConvConfig& c, const Operands& operands, cudaStream_t stream) {
            dispatch_products(c, [&]<class T, bool Split>(std::type_identity<T>, std::bool_constant<Split>) {
              Start{}(*kept_plan<make>(p, c), GatherCall<T, Split>(p, c, operands, stream));
            });
          }};
}

/// Kernels for backward_weight with `splits` partial sums of each weight: start(plan, WeightCall<T, Split>).
template <auto make, class Start>
constexpr Algorithm weight_family(const char* name, Start) {
  return {name,
          [](const ConvProblem& p, const ConvConfig& c) {
            return has_blocks<make>(p, c) && partial_bytes(p, kept_plan<make>(p, c)->splits) <= kWorkspaceCap;
          },
          [](const ConvProblem& p, const ConvConfig& c) { return partial_bytes(p, kept_plan<make>(p, c)->splits); },
          [](const ConvProblem& p, const ConvConfig& c) { return kept_plan<make>(p, c)->predicted_ms; },
          [](const ConvProblem& p, const ConvConfig& c, const Operands& operands, cudaStream_t stream) {
            dispatch_products(c, [&]<class T, bool Split>(std::type_identity<T>, std::bool_constant<Split>) {
              Start{}(*kept_plan<make>(p, c), WeightCall<T, Split>{p, c, operands, stream});
            });
          }};
}

/// Which of two families has a call's pass.
template <const Algorithm& gather, const Algorithm& weight>
const Algorithm& family_of(const ConvConfig& config) {
  return config.pass == ConvPass::BackwardWeight ? weight : gather;
}

/// Both as one.
template <const Algorithm& gather, const Algorithm& weight>
constexpr Algorithm joined_family(const char* name) {
  return {name, [](const ConvProblem& p, const ConvConfig& c) { return family_of<gather, weight>(c).supports(p, c); },
          [](const ConvProblem& p, const ConvConfig& c) { return family_of<gather, weight>(c).workspace_bytes(p, c); },
          [](const ConvProblem& p, const ConvConfig& c) { return family_of<gather, weight>(c).predict_ms(p, c); },
          [](const ConvProblem& p, const ConvConfig& c, const Operands& operands, cudaStream_t stream) {
            family_of<gather, weight>(c).run(p, c, operands, stream);
          }};
}

}  // namespace halo::cuda::conv
