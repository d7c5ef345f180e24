// Few channels out of many with unit stride on Hopper's tensor cores: forward and backward_input, float32-accurate or
// TF32.
//
// Limits: float32 storage, compute capability 9.0, one group, strides of 1, at most 64 source channels, a multiple of
// 8, at most 16 target channels, at most 112 taps; sums of a few lines must fit shared memory (plan.cpp).
//
// The dense engine gathers: with few target channels its columns are neighbouring targets, whose windows share only
// some of their taps, so that most products are of zeros. Here each source position is multiplied once, by the weights
// of all taps and target channels as columns: one plain matrix product, whose depth is the source channels. Nothing is
// padded but the columns. Half of the block multiplies, 128 positions a tile; the other half adds each column to the
// target that lies its tap further on, in sums that stay in shared memory until the last source plane that reaches
// them. Along depth the block marches; along height and depth neighbouring work items read some of the source twice.
//
// Lines of sums are as long as the source's lines and their reach, and positions of a tile are counted in them, so that
// a tap is one distance. All additions happen in a fixed order.
#include <halo/core/error.h>

#include "../../launch.h"
#include "../../runtime/traits.h"
#include "../algorithms.h"
#include "../plan_key.h"
#include "spread.cuh"

namespace halo::cuda::conv {
namespace {

std::optional<SpreadPlan> make_plan(const ConvProblem& problem, const ConvConfig& config) {
  const DeviceTraits& device = device_traits();
  return device.is_hopper() ? plan_spread(problem, config, device.multiprocessors) : std::nullopt;
}

std::shared_ptr<const std::optional<SpreadPlan>> plan_for(const ConvProblem& problem, const ConvConfig& config) {
  return kept_plan<make_plan>(problem, config);
}

bool supports(const ConvProblem& problem, const ConvConfig& config) { return plan_for(problem, config)->has_value(); }

double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  return plan_for(problem, config)->value().predicted_ms;
}

template <int Products>
auto kernel_of(int columns) {
  switch (columns) {
    case 32: return spread_kernel<SpreadTraits<32, Products>>;
    case 64: return spread_kernel<SpreadTraits<64, Products>>;
    case 88: return spread_kernel<SpreadTraits<88, Products>>;
    default: return spread_kernel<SpreadTraits<112, Products>>;
  }
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const SpreadPlan plan = plan_for(problem, config)->value();
  SpreadParams params = plan.params;
  params.source = static_cast<const float*>(params.forward ? operands.x : operands.y);
  params.weights = static_cast<const float*>(operands.w);
  params.bias = params.forward && config.bias ? static_cast<const float*>(operands.bias) : nullptr;
  params.target = static_cast<float*>(params.forward ? operands.y : operands.x);
  params.activation = params.forward ? config.activation : Activation{};
  const PlainSum plain{Sizes(problem), params.source, params.weights, params.forward};
  launch("conv spread",
         config.precision == Precision::Float32 ? kernel_of<3>(plan.columns) : kernel_of<1>(plan.columns),
         dim3(static_cast<unsigned>(plan.blocks)), kSpreadThreads, plan.shared_bytes, stream, params, plain);
}

}  // namespace

const Algorithm kSpread{"dense spread", supports, no_workspace, predict_ms, run};

}  // namespace halo::cuda::conv
