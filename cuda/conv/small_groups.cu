// Convolutions with few channels a group on the tensor cores, from a tile in shared memory: any stride and dilation,
// ordinary and transposed.
//
// Limits: at most 16 channels a group on either side, or 4 on one and 64 on the other; at most 12 taps and stride 8 an
// axis; extents below 2^30 after axes that the kernel does not touch are merged; a tile of 16 neighbouring positions
// with its reach fits in shared memory; float32, bfloat16 and float16. No limits on alignment, padding or the number of
// groups. float32 keeps float32 accuracy (operands split in two TF32 numbers), unless Precision::TF32 asks for one. The
// half types are exact in TF32.
#include <algorithm>

#include "algorithms.h"
#include "ordered_sum.cuh"
#include "small_groups.h"

namespace halo::cuda::conv {
namespace small_groups {
namespace {

bool is_split(const ConvConfig& config) {
  return config.dtype == DType::Float32 && config.precision == Precision::Float32;
}

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  const bool storage =
      config.dtype == DType::Float32 || config.dtype == DType::BFloat16 || config.dtype == DType::Float16;
  if (!storage || !small_groups_fit(problem) || !few_channels(problem)) return false;
  const std::size_t size = size_of(config.dtype);
  if (config.pass == ConvPass::BackwardWeight) return weight_plan(problem, size, is_split(config)).blocks > 0;
  return gather_plan(problem, config.pass, size, is_split(config)).blocks > 0;
}

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight) return 0;
  const WeightPlan plan = weight_plan(problem, size_of(config.dtype), is_split(config));
  return static_cast<std::size_t>(problem.w_numel()) * static_cast<std::size_t>(plan.splits) * sizeof(double);
}

/// The plan's own count, which ranks plans, as seen on an H200.
double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  const std::size_t size = size_of(config.dtype);
  if (problem.is_depthwise()) return 4e-3 + problem.bytes(size) / 1e8;  // most of each product is empty
  const double ms = config.pass == ConvPass::BackwardWeight
                        ? weight_plan(problem, size, is_split(config)).predicted_ms
                        : gather_plan(problem, config.pass, size, is_split(config)).predicted_ms;
  const double seen = size == 2 ? 1.0 : config.pass == ConvPass::BackwardWeight ? 0.84 : 0.9;
  return std::max(seen * ms, 4e-3 + problem.bytes(size) / 3.6e9);
}

template <class T>
void run_as(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const auto* x = static_cast<const T*>(operands.x);
  const auto* y = static_cast<const T*>(operands.y);
  if (config.pass == ConvPass::BackwardWeight) {
    const WeightPlan plan = weight_plan(problem, sizeof(T), is_split(config));
    launch_weight<T>(plan, {x, y, static_cast<double*>(operands.workspace)}, is_split(config), stream);
    return ordered_sum<T>(problem, operands, plan.splits, stream);
  }
  GatherArguments<T> arguments{y, static_cast<const T*>(operands.w), nullptr, static_cast<T*>(operands.x), {}};
  if (config.pass == ConvPass::Forward) {
    arguments = {x, arguments.weight, static_cast<const T*>(operands.bias), static_cast<T*>(operands.y),
                 config.activation};
  }
  launch_gather<T>(gather_plan(problem, config.pass, sizeof(T), is_split(config)), arguments, is_split(config), stream);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  switch (config.dtype) {
    case DType::Float32: return run_as<float>(problem, config, operands, stream);
    case DType::BFloat16: return run_as<BFloat16>(problem, config, operands, stream);
    case DType::Float16: return run_as<Float16>(problem, config, operands, stream);
    default: fail<InternalError>("small groups: dtype expected float32, bfloat16 or float16, got ", name(config.dtype));
  }
}

}  // namespace
}  // namespace small_groups

const Algorithm kSmallGroups{"small groups", small_groups::supports, small_groups::workspace_bytes,
                             small_groups::predict_ms, small_groups::run};

}  // namespace halo::cuda::conv
