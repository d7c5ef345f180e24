// Weight gradients of strided convolutions of few channels a group, on Hopper's copy engine and tensor cores.
//
// Limits: compute capability 9.0; 3 to 16 channels a group on either side; at most 3 taps along the first axis that has
// more than one position, whose dilation divides the stride or is 1; in the width at most 7 taps at stride 2, or 5 at
// stride 3, dilation 1 and padding up to 24; float32 (accurate whatever the precision), bfloat16 and float16. Where an
// operand is not finite, sums that it reaches, or whose padding it meets, may be NaN.
#include "../algorithms.h"
#include "../ordered_sum.cuh"
#include "../plan_key.h"
#include "../storage.h"
#include "weight.cuh"

namespace halo::cuda::conv {
namespace streams {
namespace {

struct SharersFirst : WeightsInOrder {
  static constexpr bool kSplitsFirst = true;
};

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  return partial_bytes(problem, kept_plan<plan_weight>(problem, config)->x.sharers);
}

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  return kept_plan<plan_weight>(problem, config)->x.blocks > 0 && workspace_bytes(problem, config) <= kWorkspaceCap;
}

double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  return kept_plan<plan_weight>(problem, config)->x.predicted_ms;
}

template <class T>
void run_as(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const auto plan = kept_plan<plan_weight>(problem, config);
  launch_weight<T>(
      *plan,
      {static_cast<const T*>(operands.x), static_cast<const T*>(operands.y), static_cast<double*>(operands.workspace)},
      stream);
  ordered_sum<T>(problem, operands, plan->x.sharers, stream, SharersFirst{}, true);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  dispatch_storage(config.dtype, [&]<class T>(std::type_identity<T>) { run_as<T>(problem, config, operands, stream); });
}

}  // namespace
}  // namespace streams

const Algorithm kStreamsWeight{"streams weight", streams::supports, streams::workspace_bytes, streams::predict_ms,
                               streams::run};

}  // namespace halo::cuda::conv
