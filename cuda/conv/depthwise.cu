// Depthwise convolution at memory speed: every source row read once, every result written once, 16 bytes at a time.
//
// Limits: groups = in_channels, any channel multiplier (backward_input: 1); stride and dilation 1 on every axis with
// more than one tap; the taps listed in depthwise_launch.cuh; float32, bfloat16 and float16; extents below 2^30, fewer
// than 2^31 threads. Any padding, width and alignment; rows and tensors beyond 2^31 elements where these hold.
// Everything else goes to depthwise_general.cu.
#include <algorithm>

#include "algorithms.h"
#include "depthwise.h"
#include "ordered_sum.cuh"

namespace halo::cuda::conv {
namespace depthwise {
namespace {

constexpr int64_t kMostTasks = (int64_t{1} << 31) - kMarchThreads;

/// Result rows a thread marches over: long enough to make re-reading the kernel's reach cheap.
constexpr int kLongestStrip = 32;
/// Terms a thread may add in float32 before float64 takes over. Rounding errors of a sum of n random terms grow as
/// sqrt(n / 2) half units in the last place of the sum: 512 terms stay near 4e-7.
constexpr int64_t kThreadTerms = 512;

int vector_width(DType dtype) { return device::kVectorBytes / static_cast<int>(size_of(dtype)); }

MarchGeometry weight_geometry(const ConvProblem& problem, DType dtype) {
  const int vector = vector_width(dtype);
  return march_geometry(problem, false, vector, static_cast<int>(kThreadTerms) / vector / 2);
}

int64_t weight_tasks(const ConvProblem& problem, const MarchGeometry& geometry) {
  return problem.batch * geometry.tasks_per_plane;
}

/// Blocks a channel, each with about kThreadTerms terms a thread.
int64_t weight_splits(const ConvProblem& problem, const MarchGeometry& geometry, int vector) {
  const int64_t tasks_per_thread = std::max<int64_t>(1, kThreadTerms / (int64_t{geometry.strip} * vector));
  const int64_t share = kMarchThreads * tasks_per_thread;
  const int64_t wanted = (weight_tasks(problem, geometry) + share - 1) / share;
  const int64_t most = static_cast<int64_t>(kWorkspaceCap / sizeof(double)) / problem.w_numel();
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, most));
}

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  const bool storage =
      config.dtype == DType::Float32 || config.dtype == DType::BFloat16 || config.dtype == DType::Float16;
  if (!storage || !problem.is_depthwise() || !march_fits(problem) || !taps_are_compiled(march_shape(problem)))
    return false;
  if (problem.x_numel() == 0 || problem.y_numel() == 0) return false;
  if (config.pass == ConvPass::BackwardInput && problem.out_channels != problem.in_channels) return false;
  if (config.pass != ConvPass::BackwardWeight) {
    const bool flipped = config.pass == ConvPass::BackwardInput;
    const auto geometry = march_geometry(problem, flipped, vector_width(config.dtype), kLongestStrip);
    return problem.batch * problem.out_channels * geometry.tasks_per_plane < kMostTasks;
  }
  const auto geometry = weight_geometry(problem, config.dtype);
  const int64_t splits = weight_splits(problem, geometry, vector_width(config.dtype));
  return weight_tasks(problem, geometry) < kMostTasks && problem.out_channels * splits < kMostTasks &&
         problem.w_numel() * static_cast<int64_t>(sizeof(double)) <= static_cast<int64_t>(kWorkspaceCap);
}

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight) return 0;
  const int64_t splits = weight_splits(problem, weight_geometry(problem, config.dtype), vector_width(config.dtype));
  return static_cast<std::size_t>(problem.w_numel() * splits) * sizeof(double);
}

/// Seen on an H200: nearly nine tenths of the copy bandwidth, or 14 TFLOP/s where the kernel has many taps.
double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  const double launches = config.pass == ConvPass::BackwardWeight ? 2 : 1;
  return 3e-3 * launches + std::max(problem.bytes(size_of(config.dtype)) / 3.7e9, problem.flops() / 14e9);
}

template <class T>
void run_march(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const bool flipped = config.pass == ConvPass::BackwardInput;
  MarchParams<T> params;
  params.source = static_cast<const T*>(flipped ? operands.y : operands.x);
  params.weight = static_cast<const T*>(operands.w);
  params.bias = flipped ? nullptr : static_cast<const T*>(operands.bias);
  params.result = static_cast<T*>(flipped ? operands.x : operands.y);
  params.extent = {params.source, params.source + (flipped ? problem.y_numel() : problem.x_numel())};
  params.flip = flipped;
  if (!flipped) params.activation = config.activation;
  params.geometry = march_geometry(problem, flipped, device::kVectorWidth<T>, kLongestStrip);
  params.rows = device::RowAlignment(params.source, params.geometry.source.width, params.geometry.pad_width);
  params.store = device::store_width(params.result, params.geometry.result.width);
  params.tasks = static_cast<uint32_t>(problem.batch * problem.out_channels * params.geometry.tasks_per_plane);
  params.channels = FastDivide(static_cast<uint32_t>(problem.out_channels));
  params.multiplier = FastDivide(static_cast<uint32_t>(problem.out_channels_per_group()));
  launch_march(march_shape(problem), params, stream);
}

template <class T>
void run_weight(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  MarchWeightParams<T> params;
  params.x = static_cast<const T*>(operands.x);
  params.y = static_cast<const T*>(operands.y);
  params.partials = static_cast<double*>(operands.workspace);
  params.x_extent = {params.x, params.x + problem.x_numel()};
  params.y_extent = {params.y, params.y + problem.y_numel()};
  params.channels = problem.out_channels;
  params.multiplier = static_cast<int>(problem.out_channels_per_group());
  params.geometry = weight_geometry(problem, config.dtype);
  params.x_rows = device::RowAlignment(params.x, params.geometry.source.width, params.geometry.pad_width);
  params.y_rows = device::RowAlignment(params.y, params.geometry.result.width, 0);
  const int64_t tasks = weight_tasks(problem, params.geometry);
  const int64_t splits = weight_splits(problem, params.geometry, device::kVectorWidth<T>);
  params.splits = static_cast<int>(splits);
  params.tasks = static_cast<uint32_t>(tasks);
  params.share = static_cast<uint32_t>((tasks + splits - 1) / splits);
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
