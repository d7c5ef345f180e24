// Weight gradients of dense convolutions: plan, accumulate (dense_weight.cuh), add the splits in order.
// Infinity and NaN come out as plain float32 gives them; elements that they reach are summed without tensor cores.
//
// Limits: see dense_weight.cuh. Hopper only. Groups need at least 8 channels on each side: below that most of a 64x8
// product would be zeros, and the problem is bound by memory anyway.
#include <map>
#include <mutex>

#include "../launch.h"
#include "../runtime/traits.h"
#include "algorithms.h"
#include "dense_weight_launch.h"
#include "sizes.cuh"

namespace halo::cuda::conv {
namespace {

static_assert(kMostPartialSums * sizeof(double) <= kWorkspaceCap);

constexpr int kLanes = 32;
constexpr int kParts = 8;  ///< threads that share one element's splits

/// One element of the weight gradient by plain multiply-adds, shared by the threads of a block.
struct PlainWeightSum {
  Sizes sizes;
  const float* x;
  const float* y;

  /// Sum of every `threads`-th product, from product `thread` on.
  __device__ float part(int64_t element, int thread, int threads) const {
    const int64_t tap = element % sizes.taps, rest = element / sizes.taps;
    const int64_t in = rest % sizes.in_per_group, out = rest / sizes.in_per_group;
    const Position at_tap = unflatten(tap, sizes.kernel);
    const int64_t first_in = out / sizes.out_per_group * sizes.in_per_group;
    float sum = 0.0f;
    for (int64_t i = thread; i < sizes.batch * sizes.output_positions; i += threads) {
      const int64_t n = i / sizes.output_positions, flat = i - n * sizes.output_positions;
      const int64_t from = sizes.input_at(unflatten(flat, sizes.output), at_tap);
      if (from < 0) continue;
      sum = fmaf(x[(n * sizes.in_channels + first_in + in) * sizes.input_positions + from],
                 y[(n * sizes.out_channels + out) * sizes.output_positions + flat], sum);
    }
    return sum;
  }
};

/// weight[...] = the splits' sums, in float64: part p takes splits p, p + 8, ..., then the parts in order. A sum that
/// is not finite is computed again: parts of its operands may have overflowed, or infinities met zeros that stand for
/// padding or for positions that do not exist.
__global__ void __launch_bounds__(kLanes* kParts)
    add_splits(const __grid_constant__ DenseWeightGeometry geometry, const double* partial, bool swapped, float* weight,
               const __grid_constant__ PlainWeightSum plain) {
  __shared__ double sums[kParts][kLanes];
  const int64_t count = static_cast<int64_t>(geometry.groups) * geometry.columns * geometry.rows;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kLanes, index = first + threadIdx.x;
  double sum = 0.0;
  if (index < count) {
#pragma unroll 4
    for (int split = threadIdx.y; split < geometry.splits; split += kParts) sum += partial[split * count + index];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  bool finite = true;
  if (threadIdx.y == 0 && index < count) {
    for (int part = 1; part < kParts; ++part) sum += sums[part][threadIdx.x];
    finite = isfinite(static_cast<float>(sum));
    weight[dense_weight_element(geometry, swapped, index)] = static_cast<float>(sum);
  }
  __shared__ uint32_t again;  // bit i: element first + i
  const uint32_t lanes = __ballot_sync(~0u, !finite);
  if (threadIdx.y == 0 && threadIdx.x == 0) again = lanes;
  __syncthreads();
  const int thread = threadIdx.y * kLanes + threadIdx.x;
  for (uint32_t rest = again; rest != 0; rest &= rest - 1) {
    const int64_t element = dense_weight_element(geometry, swapped, first + __ffs(static_cast<int>(rest)) - 1);
    __syncthreads();
    sums[threadIdx.y][threadIdx.x] = plain.part(element, thread, kLanes * kParts);
    __syncthreads();
    if (thread != 0) continue;
    float total = 0.0f;
    for (const auto& part : sums)
      for (double value : part) total += static_cast<float>(value);
    weight[element] = total;
  }
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
                device_traits().multiprocessors};
  const std::size_t hash = hash_value(problem);
  const std::lock_guard lock(mutex);
  for (auto [entry, end] = plans.equal_range(hash); entry != end; ++entry)
    if (entry->second.first == key) return entry->second.second;
  const DenseWeightPlan plan = plan_dense_weight(problem, key.split, key.aligned, key.multiprocessors);
  return plans.emplace(hash, std::pair(key, plan))->second.second;
}

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight || config.dtype != DType::Float32) return false;
  if (!device_traits().is_hopper()) return false;
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
    default: break;
  }
  if constexpr (!Split) {  // wider ones where folded taps fill them
    if (plan.tile_columns == 144) return launch_dense_weight<144, Split>(plan, gathered, streamed, partial, stream);
    if (plan.tile_columns == 192) return launch_dense_weight<192, Split>(plan, gathered, streamed, partial, stream);
  }
  fail<InternalError>("dense_weight: no tile of ", plan.tile_columns, " columns");
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
         dim3(kLanes, kParts), 0, stream, g, partial, plan.swapped, static_cast<float*>(operands.w),
         PlainWeightSum{Sizes(problem), x, y});
}

}  // namespace

const Algorithm kDenseWeight{"dense_weight", supports, workspace_bytes, predict_ms, run};

}  // namespace halo::cuda::conv
