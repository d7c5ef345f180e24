// Weight gradients of dense convolutions: plan, accumulate (dense_weight.cuh), add the splits in order.
//
// Limits: see dense_weight.cuh. Hopper only. Groups need at least 8 channels on each side: below that most of a 64x8
// product would be zeros, and the problem is bound by memory anyway.
#include <map>
#include <mutex>

#include "../launch.h"
#include "algorithms.h"
#include "dense_weight_launch.h"

namespace halo::cuda::conv {
namespace {

static_assert(kMostPartialSums * sizeof(double) <= kWorkspaceCap);

constexpr int kLanes = 32;
constexpr int kParts = 8;  ///< threads that share one element's splits

/// weight[...] = the splits' sums, in float64: part p takes splits p, p + 8, ..., then the parts in order.
__global__ void __launch_bounds__(kLanes* kParts) add_splits(const __grid_constant__ DenseWeightGeometry geometry,
                                                             const double* partial, bool swapped, float* weight) {
  __shared__ double sums[kParts][kLanes];
  const int64_t count = static_cast<int64_t>(geometry.groups) * geometry.columns * geometry.rows;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  double sum = 0.0;
  if (index < count) {
#pragma unroll 4
    for (int split = threadIdx.y; split < geometry.splits; split += kParts) sum += partial[split * count + index];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || index >= count) return;
  for (int part = 1; part < kParts; ++part) sum += sums[part][threadIdx.x];
  weight[dense_weight_element(geometry, swapped, index)] = static_cast<float>(sum);
}

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "dense_weight");
  check(cudaDeviceGetAttribute(&value, which, device), "dense_weight");
  return value;
}

/// Plans are remembered: finding one costs tens of microseconds.
const DenseWeightPlan& plan_for(const ConvProblem& problem, const ConvConfig& config) {
  struct Key {
    ConvProblem problem;
    bool split, aligned;
    int multiprocessors;
    bool operator==(const Key&) const = default;
  };
  static std::mutex mutex;
  static std::multimap<std::size_t, std::pair<Key, DenseWeightPlan>> plans;
  const Key key{problem, config.precision == Precision::Float32, config.alignment >= 16,
                attribute(cudaDevAttrMultiProcessorCount)};
  const std::size_t hash = hash_value(problem);
  const std::lock_guard lock(mutex);
  for (auto [entry, end] = plans.equal_range(hash); entry != end; ++entry)
    if (entry->second.first == key) return entry->second.second;
  const DenseWeightPlan plan = plan_dense_weight(problem, key.split, key.aligned, key.multiprocessors);
  return plans.emplace(hash, std::pair(key, plan))->second.second;
}

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight || config.dtype != DType::Float32) return false;
  if (attribute(cudaDevAttrComputeCapabilityMajor) != 9) return false;
  if (problem.groups > 1 && (problem.in_channels_per_group() < 8 || problem.out_channels_per_group() < 8)) return false;
  return plan_for(problem, config).valid;
}

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  return plan_for(problem, config).workspace_bytes;
}

double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  return plan_for(problem, config).milliseconds;
}

template <bool Split>
void accumulate(const DenseWeightPlan& plan, const float* gathered, const float* streamed, double* partial,
                cudaStream_t stream) {
  switch (plan.tile_columns) {
    case 16: return launch_dense_weight<16, Split>(plan, gathered, streamed, partial, stream);
    case 32: return launch_dense_weight<32, Split>(plan, gathered, streamed, partial, stream);
    case 48: return launch_dense_weight<48, Split>(plan, gathered, streamed, partial, stream);
    case 64: return launch_dense_weight<64, Split>(plan, gathered, streamed, partial, stream);
    case 96: return launch_dense_weight<96, Split>(plan, gathered, streamed, partial, stream);
    case 128: return launch_dense_weight<128, Split>(plan, gathered, streamed, partial, stream);
    default: fail<InternalError>("dense_weight: no tile of ", plan.tile_columns, " columns");
  }
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const DenseWeightPlan& plan = plan_for(problem, config);
  const DenseWeightGeometry& g = plan.geometry;
  const auto* x = static_cast<const float*>(operands.x);
  const auto* y = static_cast<const float*>(operands.y);
  auto* partial = static_cast<double*>(operands.workspace);
  const auto& enqueue = plan.split ? accumulate<true> : accumulate<false>;
  enqueue(plan, plan.swapped ? y : x, plan.swapped ? x : y, partial, stream);
  const int64_t count = int64_t{g.groups} * g.columns * g.rows;
  launch("dense_weight_splits", add_splits, dim3(static_cast<unsigned>((count + kLanes - 1) / kLanes)),
         dim3(kLanes, kParts), 0, stream, g, partial, plan.swapped, static_cast<float*>(operands.w));
}

}  // namespace

const Algorithm kDenseWeight{"dense_weight", supports, workspace_bytes, predict_ms, run};

}  // namespace halo::cuda::conv
