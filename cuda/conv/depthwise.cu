// Depthwise convolution at memory speed: every source row read once, by whole 16-byte granules, every result written
// once.
//
// Limits: groups = in_channels, any channel multiplier (backward_input: 1); stride and dilation 1 on every axis with
// more than one tap; the taps listed in depthwise_launch.cuh; float32, bfloat16 and float16; extents below 2^30, fewer
// than 2^31 blocks; half types with several rows of taps in backward_weight alone (else depthwise_half.cu). Any
// padding, width and alignment; rows and tensors beyond 2^31 elements where these hold. Everything else goes to
// depthwise_general.cu.
#include <algorithm>

#include "algorithms.h"
#include "depthwise.h"
#include "ordered_sum.cuh"

namespace halo::cuda::conv {
namespace depthwise {
namespace {

constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  const bool storage =
      config.dtype == DType::Float32 || config.dtype == DType::BFloat16 || config.dtype == DType::Float16;
  const MarchShape shape = march_shape(problem);
  if (!storage || !problem.is_depthwise() || !march_fits(problem) || !taps_are_compiled(shape)) return false;
  const bool rows_of_taps = shape.march > 1 && shape.inner == 1;
  if (is_half(config.dtype) && rows_of_taps && config.pass != ConvPass::BackwardWeight) return false;
  if (problem.x_numel() == 0 || problem.y_numel() == 0) return false;
  if (config.pass == ConvPass::BackwardInput && problem.out_channels != problem.in_channels) return false;
  const auto geometry = march_geometry(problem, config.pass, static_cast<int>(size_of(config.dtype)));
  if (config.pass != ConvPass::BackwardWeight)
    return geometry.plane_count < kMostBlocks && geometry.tiles < kMostBlocks;
  return problem.out_channels * geometry.tiles < kMostBlocks &&
         problem.w_numel() * geometry.tiles * int64_t{sizeof(double)} <= static_cast<int64_t>(kWorkspaceCap);
}

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight) return 0;
  const auto geometry = march_geometry(problem, config.pass, static_cast<int>(size_of(config.dtype)));
  return static_cast<std::size_t>(problem.w_numel() * geometry.tiles) * sizeof(double);
}

/// Seen on an H200: nearly nine tenths of the copy bandwidth, or 14 TFLOP/s where the kernel has many taps, or the
/// copies of short rows one by one.
double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  const bool weight = config.pass == ConvPass::BackwardWeight;
  const double width = static_cast<double>(problem.kernel[2]);
  const auto rows =
      static_cast<double>(std::max(problem.x_numel() / problem.input[2], problem.y_numel() / problem.output[2]));
  const double row_copies = rows * (weight ? 130e-9 + 10e-9 * width : 50e-9 + 10e-9 * width);
  return (weight ? 6e-3 : 3e-3) + std::max({problem.bytes(size_of(config.dtype)) / 3.7e9, problem.flops() / 14e9,
                                            march_shape(problem).march > 1 ? row_copies : 0.0});
}

template <class T>
void run_march(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  MarchParams<T> params;
  set_operands<T>(params, problem, config, operands);
  params.geometry = march_geometry(problem, config.pass, sizeof(T));
  launch_march(march_shape(problem), params, stream);
}

template <class T>
void run_weight(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  MarchWeightParams<T> params;
  params.x = static_cast<const T*>(operands.x);
  params.y = static_cast<const T*>(operands.y);
  params.partials = static_cast<double*>(operands.workspace);
  params.channels = problem.out_channels;
  params.multiplier = static_cast<int>(problem.out_channels_per_group());
  params.geometry = march_geometry(problem, config.pass, sizeof(T));
  params.splits = static_cast<int>(params.geometry.tiles);
  launch_march_weight(march_shape(problem), params, stream);
  ordered_sum<T>(problem, operands, params.splits, stream);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const auto run_as = [&]<class T>(std::type_identity<T>) {
    if (config.pass == ConvPass::BackwardWeight) {
      run_weight<T>(problem, config, operands, stream);
    } else {
      run_march<T>(problem, config, operands, stream);
    }
  };
  switch (config.dtype) {
    case DType::Float32: return run_as(std::type_identity<float>{});
    case DType::BFloat16: return run_as(std::type_identity<BFloat16>{});
    case DType::Float16: return run_as(std::type_identity<Float16>{});
    default:
      fail<InternalError>("depthwise convolution: dtype expected float32, bfloat16 or float16, got ",
                          name(config.dtype));
  }
}

}  // namespace
}  // namespace depthwise

const Algorithm kDepthwise{"depthwise", depthwise::supports, depthwise::workspace_bytes, depthwise::predict_ms,
                           depthwise::run};

}  // namespace halo::cuda::conv
