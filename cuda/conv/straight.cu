// Convolutions of few channels straight from global memory, on the tensor cores of every GPU since 8.0.
//
// Limits: one group, at most 256 channels (float32: 64 result channels), 12 taps and stride 8 an axis; weights that fit
// in shared memory as fragments; extents below 2^30; float32, bfloat16 and float16. backward_weight: of half types
// alone. Any padding, dilation and alignment.
#include "algorithms.h"
#include "ordered_sum.cuh"
#include "plain_sum.cuh"
#include "plan_key.h"
#include "storage.h"
#include "straight.h"

namespace halo::cuda::conv {
namespace straight {

template <class T, bool Split>
void launch_straight(const Plan& plan, const small_groups::GatherArguments<T>& arguments, const PlainSumOf<T>& plain,
                     cudaStream_t stream);
template <class T>
void launch_weight(const WeightPlan& plan, const T* x, const T* y, double* partials, cudaStream_t stream);

namespace {

std::shared_ptr<const WeightPlan> weight_plan_of(const ConvProblem& problem, const ConvConfig& config) {
  static ConvPlanCache<WeightPlan> plans;
  return plans.get({problem, config},
                   [](const PlanKey& key) { return plan_weight(key.problem, key.config.alignment); });
}

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass == ConvPass::BackwardWeight)
    return is_half(config.dtype) && weight_plan_of(problem, config)->blocks > 0;
  if (config.dtype != DType::Float32 && !is_half(config.dtype)) return false;
  return plan_straight(problem, config).blocks > 0;
}

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight) return 0;
  return static_cast<std::size_t>(problem.w_numel() * weight_plan_of(problem, config)->splits) * sizeof(double);
}

double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass == ConvPass::BackwardWeight) return weight_plan_of(problem, config)->predicted_ms;
  return plan_straight(problem, config).predicted_ms;
}

template <class T>
void run_as(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const auto* w = static_cast<const T*>(operands.w);
  auto *const x = static_cast<T*>(operands.x), *const y = static_cast<T*>(operands.y);
  if constexpr (sizeof(T) == 2) {
    if (config.pass == ConvPass::BackwardWeight) {
      const auto plan = weight_plan_of(problem, config);
      launch_weight<T>(*plan, x, y, static_cast<double*>(operands.workspace), stream);
      return ordered_sum<T>(problem, operands, static_cast<int>(plan->splits), stream, WeightsInOrder{},
                            plan->engine && !plan->packs);
    }
  }
  const bool forward = config.pass == ConvPass::Forward;
  small_groups::GatherArguments<T> arguments{y, w, nullptr, x, {}};
  if (forward) arguments = {x, w, static_cast<const T*>(operands.bias), y, config.activation};
  const Plan plan = plan_straight(problem, config);
  const PlainSumOf<T> plain{Sizes(problem), arguments.source, w, forward};
  if constexpr (sizeof(T) == 4) {
    if (plan.split) return launch_straight<T, true>(plan, arguments, plain, stream);
  }
  launch_straight<T, false>(plan, arguments, plain, stream);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  dispatch_storage(config.dtype, [&]<class T>(std::type_identity<T>) { run_as<T>(problem, config, operands, stream); });
}

}  // namespace
}  // namespace straight

const Algorithm kStraight{"straight", straight::supports, straight::workspace_bytes, straight::predict_ms,
                          straight::run};

}  // namespace halo::cuda::conv
