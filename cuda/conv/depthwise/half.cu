// Depthwise convolution of half types on the tensor cores, at memory speed.
//
// Limits: groups = in_channels, any channel multiplier (backward_input: 1); stride and dilation 1 on every axis with
// more than one tap; at most 8 taps along the width; bfloat16, float16; extents below 2^30, fewer than 2^31 blocks.
// Forward and backward_input: 3, 5 or 7 taps along the height, 1 along the depth (or the other way round and 1 along
// the width), any padding, width and alignment.
// backward_weight: one row of taps (rows.cu has several), even widths of x and y, operands aligned to 4
// bytes, at least 8 rows (or one of at least 4096 columns).
#include <algorithm>

#include "../algorithms.h"
#include "../ordered_sum.cuh"
#include "../plan_key.h"
#include "half_march.cuh"
#include "half_weight.cuh"

namespace halo::cuda::conv {
namespace depthwise {
namespace {

constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;

bool supports(const ConvProblem& given, const ConvConfig& config) {
  const ConvProblem problem = depth_as_height(given);
  if (!is_half(config.dtype) || !problem.is_depthwise() || !march_fits(problem) || problem.kernel[0] > 1) return false;
  const MarchShape shape = march_shape(problem);
  if (shape.width > kMostBandWidth || problem.x_numel() == 0 || problem.y_numel() == 0) return false;
  if (config.pass == ConvPass::BackwardWeight) {
    if (shape.march != 1) return false;
    const int64_t splits = half_weight_geometry(problem, config.alignment).splits;
    return splits > 0 && problem.out_channels * splits < kMostBlocks && partial_bytes(problem, splits) <= kWorkspaceCap;
  }
  if (!with_march(shape.march, [](auto) {})) return false;  // single rows: depthwise.cu is faster
  if (config.pass == ConvPass::BackwardInput && problem.out_channels != problem.in_channels) return false;
  const MarchGeometry geometry = band_geometry(problem, config.pass).march;
  return geometry.plane_count < kMostBlocks && geometry.tiles < kMostBlocks;
}

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight) return 0;
  return partial_bytes(problem, half_weight_geometry(problem, config.alignment).splits);
}

/// Seen on an H200: nine tenths of the copy bandwidth. Short rows and small planes fill only part of what a warp
/// computes at once: 16 rows of kBandColumns results.
double predict_ms(const ConvProblem& given, const ConvConfig& config) {
  const ConvProblem problem = depth_as_height(given);
  const double bytes = problem.bytes(size_of(config.dtype)) / 3.8e9;
  if (config.pass == ConvPass::BackwardWeight) return 6e-3 + bytes;
  const auto blocks = [](int64_t extent, int64_t of) { return static_cast<double>((extent + of - 1) / of); };
  const double planes = static_cast<double>(problem.batch * problem.out_channels * problem.output[0]);
  const double row = problem.output[2] > kBandColumns ? 1.3e-7 : 2e-7;
  return 4e-3 +
         std::max(bytes, planes * 16 * blocks(problem.output[1], 16) * blocks(problem.output[2], kBandColumns) * row);
}

template <class T>
void run_as(const ConvProblem& given, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const ConvProblem problem = depth_as_height(given);
  if (config.pass == ConvPass::BackwardWeight) {
    const HalfWeightGeometry geometry = half_weight_geometry(problem, config.alignment);
    launch_half_weight(HalfWeightParams<T>(problem, operands, geometry, geometry.splits), stream);
    return ordered_sum<T>(problem, operands, static_cast<int>(geometry.splits), stream);
  }
  launch_bands(march_shape(problem).march,
               BandParams<T>(problem, config, operands, band_geometry(problem, config.pass)), stream);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  if (config.dtype == DType::BFloat16) return run_as<BFloat16>(problem, config, operands, stream);
  run_as<Float16>(problem, config, operands, stream);
}

}  // namespace
}  // namespace depthwise

const Algorithm kDepthwiseHalf{"depthwise half", depthwise::supports, depthwise::workspace_bytes, depthwise::predict_ms,
                               depthwise::run};

}  // namespace halo::cuda::conv
