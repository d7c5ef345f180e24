// Strided convolutions of few channels a group: forward, on Hopper's copy engine and tensor cores.
//
// Limits: compute capability 9.0; 3 to 16 channels a group on either side; along the width the steps and taps of
// kShapes, side by side; along the first axis of more than one position the dilation is 1 or divides the stride, no
// position is left out and as few results share one as kShapes has; at most 12 taps an axis; the rows of x that one
// height reads fit in shared memory twice; extents below 2^30; float32 (accurate whatever the precision), bfloat16 and
// float16. Any padding and alignment; bias, but no activation.
#include "algorithms.h"
#include "plan_key.h"
#include "storage.h"
#include "streams_gather.cuh"

namespace halo::cuda::conv {
namespace streams {

template <class T>
void launch_gather(const Plan& plan, const Arguments<T>& arguments, const PlainSumOf<T>& plain, cudaStream_t stream);

namespace {

std::shared_ptr<const Plan> plan_of(const ConvProblem& problem, const ConvConfig& config) {
  static ConvPlanCache<Plan> plans;
  return plans.get(PlanKey(problem, config), [](const PlanKey& key) {
    const DType dtype = key.config.dtype;
    if (key.config.pass != ConvPass::Forward || (dtype != DType::Float32 && !is_half(dtype))) return Plan{};
    return plan_gather(key.problem, static_cast<int>(size_of(dtype)));
  });
}

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  return config.activation.kind == ActivationKind::None && plan_of(problem, config)->blocks > 0;
}

std::size_t workspace_bytes(const ConvProblem&, const ConvConfig&) { return 0; }

double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  return plan_of(problem, config)->predicted_ms;
}

template <class T>
void run_as(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const Arguments<T> arguments{static_cast<const T*>(operands.x), static_cast<const T*>(operands.w),
                               static_cast<const T*>(operands.bias), static_cast<T*>(operands.y)};
  launch_gather<T>(*plan_of(problem, config), arguments,
                   PlainSumOf<T>{Sizes(problem), arguments.source, arguments.weight, true}, stream);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  dispatch_storage(config.dtype, [&]<class T>(std::type_identity<T>) { run_as<T>(problem, config, operands, stream); });
}

}  // namespace
}  // namespace streams

const Algorithm kStreams{"streams", streams::supports, streams::workspace_bytes, streams::predict_ms, streams::run};

}  // namespace halo::cuda::conv
