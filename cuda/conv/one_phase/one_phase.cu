// Convolutions of stride 2 along the width whose taps are a stride apart, so that they read every second position
// alone, on Hopper.
//
// Limits: one group; at most 64 source and 32 result channels; kernels of 1 x 1 x 2 or 3 with stride and dilation 2 of
// the width, no padding of other axes; no activation; planes below 2^30; float32, bfloat16, float16. Any alignment.
#include <algorithm>

#include "../algorithms.h"
#include "../family.cuh"
#include "../small_groups/limits.h"
#include "kernel.cuh"

namespace halo::cuda::conv {
namespace one_phase {
namespace {

using small_groups::GroupProblem;

constexpr int64_t kLargestItems = int64_t{1} << 30;

Plan make_plan(const ConvProblem& problem, const ConvConfig& config) {
  Plan plan{};
  const DeviceTraits limits = small_groups::device_limits();
  const bool half = is_half(config.dtype);
  if (!limits.is_hopper() || (!half && config.dtype != DType::Float32) || config.pass != ConvPass::Forward ||
      config.activation.kind != ActivationKind::None || problem.groups != 1 || problem.out_channels > kColumns ||
      !small_groups::small_groups_fit(problem))
    return plan;
  const GroupProblem& p = plan.problem = small_groups::group_problem(problem, true);
  if (p.kernel[0] * p.kernel[1] != 1 || p.origin[0] != 0 || p.origin[1] != 0 || p.kernel[2] < 2 ||
      p.kernel[2] > kTaps || p.step[2] != kStep || p.taps[2].offset[0][1] != kStep)
    return plan;
  if ((p.result[0] - 1) * p.step[0] >= p.source[0] || (p.result[1] - 1) * p.step[1] >= p.source[1]) return plan;
  for (int i = 0; i < kTaps; ++i) plan.tap[i] = i < p.kernel[2] ? p.taps[2].tap[0][i] * p.tap_pitch[2] : -1;
  const int size = half ? 2 : 4, parts = !half && config.precision == Precision::Float32 ? 2 : 1;
  plan.packs = config.alignment >= 16 && p.result[2] % kLanePositions == 0;
  plan.units = to_int(divide_up(p.source_channels, channels_of(size)));
  plan.weight_bytes = plan.units * kSteps * kTaps * parts * kTileBytes;
  const int64_t room = static_cast<int64_t>(limits.block_memory) - plan.weight_bytes;
  plan.slots = to_int(std::min<int64_t>(streams::kMostSlots, room / slot_bytes_of(size)));
  if (plan.slots < kFewestSlots) return plan;
  // A slot then always holds the same channels: what lies where there are none is no NaN of another image.
  if (p.source_channels % channels_of(size) != 0 && plan.slots >= plan.units) plan.slots -= plan.slots % plan.units;
  plan.shared_bytes = static_cast<std::size_t>(plan.weight_bytes + plan.slots * slot_bytes_of(size));
  plan.tiles = FastDivide(static_cast<uint32_t>(divide_up(p.result[2], kPositions)));
  const int64_t rows = int64_t{p.result[0]} * p.result[1];
  if (rows >= kLargestItems || problem.batch >= kLargestItems) return plan;
  plan.rows = FastDivide(static_cast<uint32_t>(rows));
  const int64_t items = problem.batch * plan.rows.divisor * plan.tiles.divisor;
  if (items >= kLargestItems) return plan;
  plan.items = to_int(items);
  plan.blocks = std::min<int64_t>(items, limits.multiprocessors);
  // As seen on an H200: bytes, or a block's items one after the other.
  constexpr double kBytesPerMs = 3.6e9, kClocksPerMs = 1.755e6, kStartMs = 7e-3;
  const double bytes = problem.bytes(static_cast<std::size_t>(size)) / kBytesPerMs;
  const auto turns = static_cast<double>(divide_up(items, plan.blocks));
  plan.predicted_ms = kStartMs + std::max(bytes, turns * plan.units * 1200 / kClocksPerMs);
  return plan;
}

}  // namespace
}  // namespace one_phase

const Algorithm kOnePhase = gather_family<one_phase::make_plan>(
    "one phase", []<class T, bool Split>(const one_phase::Plan& plan, const GatherCall<T, Split>& call) {
      launch("conv one phase", one_phase::one_phase_kernel<T, Split>, dim3(static_cast<unsigned>(plan.blocks)),
             dim3(one_phase::kThreads), plan.shared_bytes, call.stream, plan, call.arguments, call.plain);
    });

}  // namespace halo::cuda::conv
