// Strided convolutions of half types along the width whose taps are a stride apart, so that they read one of its phases
// alone, on the tensor cores of every GPU since 8.0.
//
// Limits: one group; at most 64 source and 32 result channels; kernels of 1 x 1 x 2 or 3 with stride and dilation 2 of
// the width, no padding of other axes; no activation; planes below 2^30; bfloat16, float16. Any alignment.
#include <algorithm>

#include "../launch.h"
#include "algorithms.h"
#include "one_phase_kernel.cuh"
#include "small_groups_limits.h"

namespace halo::cuda::conv {
namespace one_phase {
namespace {

using small_groups::divide_up;
using small_groups::GroupProblem;
using small_groups::to_int;

Plan make_plan(const ConvProblem& problem, const ConvConfig& config) {
  Plan plan{};
  if (!is_half(config.dtype) || config.pass != ConvPass::Forward || config.activation.kind != ActivationKind::None ||
      problem.groups != 1 || problem.out_channels > kColumnTiles * 8 || !small_groups::small_groups_fit(problem))
    return plan;
  const GroupProblem& p = plan.problem = small_groups::group_problem(problem, true);
  if (p.kernel[0] * p.kernel[1] != 1 || p.origin[0] != 0 || p.origin[1] != 0 || p.kernel[2] < 2 ||
      p.kernel[2] > kTaps || p.step[2] < 2 || p.taps[2].offset[0][1] != p.step[2])
    return plan;
  if ((p.result[0] - 1) * p.step[0] >= p.source[0] || (p.result[1] - 1) * p.step[1] >= p.source[1]) return plan;
  for (int i = 0; i < kTaps; ++i) plan.tap[i] = i < p.kernel[2] ? p.taps[2].tap[0][i] * p.tap_pitch[2] : -1;
  plan.granules = to_int(divide_up((kPositions + kTaps - 2) * p.step[2] + kWide, kWide));
  if (plan.granules > kGranules) return plan;
  plan.steps = to_int(divide_up(p.source_channels, 8));
  plan.packs = config.alignment >= 16 && p.result[2] % 4 == 0;
  const DeviceTraits limits = small_groups::device_limits();
  const int64_t weights = int64_t{plan.steps} * kTaps * kColumnTiles * kWords * 4;
  plan.warps =
      to_int(std::min<int64_t>(kMostWarps, (static_cast<int64_t>(limits.block_memory) - weights) / kStageBytes));
  if (plan.warps < 1) return plan;
  plan.shared_bytes = static_cast<std::size_t>(weights + int64_t{plan.warps} * kStageBytes);
  plan.tiles = FastDivide(static_cast<uint32_t>(divide_up(p.result[2], kPositions)));
  plan.rows = FastDivide(static_cast<uint32_t>(p.result[0] * p.result[1]));
  const int64_t items = problem.batch * plan.rows.divisor * plan.tiles.divisor;
  if (items >= int64_t{1} << 30) return plan;
  plan.items = to_int(items);
  plan.blocks = std::min<int64_t>(divide_up(items, plan.warps), limits.multiprocessors);
  plan.predicted_ms = 7e-3 + problem.bytes(sizeof(Float16)) / 2.3e9;
  return plan;
}

bool supports(const ConvProblem& problem, const ConvConfig& config) { return make_plan(problem, config).blocks > 0; }

std::size_t workspace_bytes(const ConvProblem&, const ConvConfig&) { return 0; }

double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  return make_plan(problem, config).predicted_ms;
}

template <class T>
void run_as(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const Plan plan = make_plan(problem, config);
  const Arguments<T> arguments{static_cast<const T*>(operands.x),
                               static_cast<const T*>(operands.w),
                               static_cast<const T*>(operands.bias),
                               static_cast<T*>(operands.y),
                               {}};
  const PlainSumOf<T> plain{Sizes(problem), arguments.source, arguments.weight, true};
  launch("conv one phase", one_phase_kernel<T>, dim3(static_cast<unsigned>(plan.blocks)),
         dim3(static_cast<unsigned>(plan.warps * 32)), plan.shared_bytes, stream, plan, arguments, plain);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  if (config.dtype == DType::BFloat16) return run_as<BFloat16>(problem, config, operands, stream);
  run_as<Float16>(problem, config, operands, stream);
}

}  // namespace
}  // namespace one_phase

const Algorithm kOnePhase{"one phase", one_phase::supports, one_phase::workspace_bytes, one_phase::predict_ms,
                          one_phase::run};

}  // namespace halo::cuda::conv
