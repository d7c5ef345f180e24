// Depthwise convolution at memory speed: every source row read once, by whole 16-byte granules, every result written
// once.
//
// Limits: groups = in_channels, any channel multiplier (backward_input: 1); stride and dilation 1 on every axis with
// more than one tap; the taps listed below; float32, bfloat16 and float16; extents below 2^30, fewer
// than 2^31 blocks; half types with several rows of taps in backward_weight alone (else half.cu). Any
// padding, width and alignment; rows and tensors beyond 2^31 elements where these hold. Everything else goes to
// polyphase.cu.
#include <algorithm>

#include "../../launch.h"
#include "../algorithms.h"
#include "../ordered_sum.cuh"
#include "../plan_key.h"
#include "../storage.h"
#include "march.cuh"
#include "weight.cuh"

namespace halo::cuda::conv {
namespace depthwise {
namespace {

constexpr int64_t kMostBlocks = (int64_t{1} << 31) - 1;

template <int March, int Inner, int Width>
struct Taps {};
template <class...>
struct TapsList {};

/// Kernels that are compiled; all others go to polyphase.cu.
using CompiledTaps =
    TapsList<Taps<1, 1, 2>, Taps<1, 1, 3>, Taps<1, 1, 4>, Taps<1, 1, 5>, Taps<1, 1, 7>, Taps<3, 1, 1>, Taps<3, 1, 3>,
             Taps<3, 1, 5>, Taps<3, 1, 7>, Taps<5, 1, 1>, Taps<5, 1, 5>, Taps<7, 1, 1>, Taps<7, 1, 7>, Taps<3, 3, 3>>;

/// Those of forward and backward_input: half types with several rows of taps have half.cu.
template <class T>
using MarchTaps = std::conditional_t<
    sizeof(T) == 2, TapsList<Taps<1, 1, 2>, Taps<1, 1, 3>, Taps<1, 1, 4>, Taps<1, 1, 5>, Taps<1, 1, 7>, Taps<3, 3, 3>>,
    CompiledTaps>;

/// Calls f(Taps<...>{}) for the member of the list that equals `shape`; false if none does.
template <class F, int... M, int... I, int... W>
bool with_taps(const MarchShape& shape, TapsList<Taps<M, I, W>...>, F&& f) {
  return ((shape == MarchShape{M, I, W} && (f(Taps<M, I, W>{}), true)) || ...);
}

template <class T>
void launch_march(const MarchShape& shape, const MarchParams<T>& params, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(params.geometry.tiles);
  const auto shared = static_cast<std::size_t>(params.geometry.source_box.bytes);
  with_taps(shape, MarchTaps<T>{}, [&]<int March, int Inner, int Width>(Taps<March, Inner, Width>) {
    launch("conv depthwise", depthwise_march<T, March, Inner, Width>, dim3(blocks),
           dim3(static_cast<unsigned>(params.geometry.threads)), shared, stream, params);
  });
}

template <class T>
void launch_march_weight(const MarchShape& shape, const MarchWeightParams<T>& params, cudaStream_t stream) {
  const int64_t blocks = params.channels * params.splits;
  const auto shared = static_cast<std::size_t>(params.geometry.source_box.bytes + params.geometry.result_box.bytes);
  with_taps(shape, CompiledTaps{}, [&]<int March, int Inner, int Width>(Taps<March, Inner, Width>) {
    launch("conv depthwise backward_weight", depthwise_weight<T, March, Inner, Width>,
           dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(params.geometry.threads)), shared, stream,
           params);
  });
}

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  const bool storage = config.dtype == DType::Float32 || is_half(config.dtype);
  const MarchShape shape = march_shape(problem);
  if (!storage || !problem.is_depthwise() || !march_fits(problem) || !with_taps(shape, CompiledTaps{}, [](auto) {}))
    return false;
  const bool rows_of_taps = shape.march > 1 && shape.inner == 1;
  if (is_half(config.dtype) && rows_of_taps && config.pass != ConvPass::BackwardWeight) return false;
  if (problem.x_numel() == 0 || problem.y_numel() == 0) return false;
  if (config.pass == ConvPass::BackwardInput && problem.out_channels != problem.in_channels) return false;
  const auto geometry = march_geometry(problem, config.pass, static_cast<int>(size_of(config.dtype)));
  if (config.pass != ConvPass::BackwardWeight)
    return geometry.plane_count < kMostBlocks && geometry.tiles < kMostBlocks;
  return problem.out_channels * geometry.tiles < kMostBlocks && partial_bytes(problem, geometry.tiles) <= kWorkspaceCap;
}

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight) return 0;
  return partial_bytes(problem, march_geometry(problem, config.pass, static_cast<int>(size_of(config.dtype))).tiles);
}

/// Seen on an H200: nearly nine tenths of the copy bandwidth, or 14 TFLOP/s where the kernel has many taps, or the
/// copies of short rows one by one, or blocks that begin and end with a row or two, as channel multipliers make them.
double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  const bool weight = config.pass == ConvPass::BackwardWeight;
  const double width = static_cast<double>(problem.kernel[2]);
  const auto rows =
      static_cast<double>(std::max(problem.x_numel() / problem.input[2], problem.y_numel() / problem.output[2]));
  const double row_copies = rows * (weight ? 130e-9 + 10e-9 * width : 50e-9 + 10e-9 * width);
  const double blocks =
      weight ? 0 : march_geometry(problem, config.pass, static_cast<int>(size_of(config.dtype))).tiles * 2.2e-6;
  return (weight ? 6e-3 : 3e-3) + std::max({problem.bytes(size_of(config.dtype)) / 3.7e9, problem.flops() / 14e9,
                                            march_shape(problem).march > 1 ? row_copies : 0.0, blocks});
}

template <class T>
void run_as(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const MarchGeometry geometry = march_geometry(problem, config.pass, sizeof(T));
  if (config.pass != ConvPass::BackwardWeight)
    return launch_march(march_shape(problem), MarchParams<T>(problem, config, operands, geometry), stream);
  launch_march_weight(march_shape(problem), MarchWeightParams<T>(problem, operands, geometry, geometry.tiles), stream);
  ordered_sum<T>(problem, operands, static_cast<int>(geometry.tiles), stream);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  dispatch_storage(config.dtype, [&]<class T>(std::type_identity<T>) { run_as<T>(problem, config, operands, stream); });
}

}  // namespace
}  // namespace depthwise

const Algorithm kDepthwise{"depthwise", depthwise::supports, depthwise::workspace_bytes, depthwise::predict_ms,
                           depthwise::run};

}  // namespace halo::cuda::conv
