// Weight gradients of dense convolutions: plan, accumulate (dense_weight.cuh), add the splits in order. Operands whose
// rows are no whole 16 bytes are copied to such that are, with zeros behind them, where that is faster; the rows of
// small images to rows that several images share.
// Infinity and NaN come out as plain float32 gives them; elements that they reach are summed without tensor cores.
//
// Limits: see dense_weight.cuh. Hopper only. Groups need at least 8 channels on each side: below that most of a 64x8
// product would be zeros, and the problem is bound by memory anyway.
#include <algorithm>
#include <cstddef>

#include "../../device/fast_divide.h"
#include "../../launch.h"
#include "../../runtime/traits.h"
#include "../algorithms.h"
#include "../ordered_sum.cuh"
#include "../plan_key.h"
#include "../storage.h"
#include "launch.h"

namespace halo::cuda::conv {
namespace {

static_assert(kMostPartialSums * sizeof(double) <= kWorkspaceCap);

constexpr int kThreads = 256;
/// The partial sums as the kernel leaves them.
struct DenseWeightOrder {
  static constexpr bool kSplitsFirst = true;
  DenseWeightGeometry geometry;
  bool swapped;
  __device__ int64_t operator()(int64_t index) const { return dense_weight_element(geometry, swapped, index); }
};

/// Rows of the copies that images share: each image's row of `width` words begins at a multiple of `pitch`.
struct SharedRows {
  int width;
  int64_t images;              ///< of the batch; the last copies may have places for more
  FastDivide together, pitch;  ///< images of a copy's row; words from one to the next
  FastDivide rows, row_quads;  ///< rows of an image; 16-byte pieces of a copy's row
};

/// Copies rows, with zeros between and behind them.
__global__ void __launch_bounds__(kThreads)
    copy_rows(const float* from, float4* to, int64_t quads, const __grid_constant__ SharedRows shared) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < quads; i += int64_t{gridDim.x} * kThreads) {
    uint32_t quad, row;
    const int64_t first = int64_t{shared.together.divisor} *
                          shared.rows.divide(shared.row_quads.divide(static_cast<uint32_t>(i), quad), row);
    float value[4];
#pragma unroll
    for (uint32_t word = 0; word < 4; ++word) {
      uint32_t at;
      const int64_t image = first + shared.pitch.divide(quad * 4 + word, at);
      const bool real = static_cast<int>(at) < shared.width && image < shared.images;
      value[word] = real ? from[(image * shared.rows.divisor + row) * shared.width + at] : 0.0f;
    }
    to[i] = {value[0], value[1], value[2], value[3]};
  }
}

/// How a problem runs: as it is, or on copies of its operands with rows of whole 16 bytes, which several images may
/// share.
struct Road {
  ConvProblem problem;
  DenseWeightPlan plan;
  int64_t together = 1, pitch = 0;     ///< images of a row, and words from one to the next
  std::size_t x_copy = 0, y_copy = 0;  ///< bytes; 0: the operand as it is

  static std::size_t round_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
  std::size_t partial_bytes() const { return round_up(plan.workspace_bytes); }
  std::size_t workspace_bytes() const { return partial_bytes() + x_copy + y_copy; }
};

/// Words from an image to its neighbour in the same row so that no window meets both, and `together` of them are whole
/// 16 bytes.
int64_t shared_pitch(const ConvProblem& p, int64_t together) {
  const int64_t read = (p.output[2] - 1) * p.stride[2] + (p.kernel[2] - 1) * p.dilation[2] - p.padding_before[2] + 1;
  int64_t pitch = std::max({p.output[2], read, p.input[2] + std::max<int64_t>(p.padding_before[2], 0)});
  while (pitch * together % 4 != 0) ++pitch;
  return pitch;
}

/// The same sum over wider rows: the upstream gradient is zero in what is added, and so is x. With images side by side
/// short rows become long ones: stages of long lines are cheaper.
Road road_over_copies(const ConvProblem& problem, int64_t together, bool split, bool aligned, int multiprocessors) {
  constexpr double kBytesPerMs = 3e9, kLaunchMs = 0.003;
  Road road{problem, {}};
  road.together = together;
  road.pitch = shared_pitch(problem, together);
  road.problem.batch = (problem.batch + together - 1) / together;
  double ms = 0;
  const auto widen = [&](int64_t& width, auto numel) -> std::size_t {
    if (together == 1 && aligned && width % 4 == 0) return 0;
    width = together == 1 ? (width + 3) / 4 * 4 : together * road.pitch;
    const auto before = static_cast<std::size_t>((problem.*numel)()) * sizeof(float);
    const auto after = static_cast<std::size_t>((road.problem.*numel)()) * sizeof(float);
    ms += static_cast<double>(before + after) / kBytesPerMs + kLaunchMs;
    return Road::round_up(after);
  };
  road.x_copy = widen(road.problem.input[2], &ConvProblem::x_numel);
  road.y_copy = widen(road.problem.output[2], &ConvProblem::y_numel);
  if (road.x_copy + road.y_copy == 0 || road.x_copy + road.y_copy > kWorkspaceCap) return road;
  road.plan = plan_dense_weight(road.problem, split, true, multiprocessors);
  road.plan.valid = road.plan.valid && road.workspace_bytes() <= kWorkspaceCap;
  road.plan.milliseconds += ms;
  return road;
}

Road make_road(const ConvProblem& p, const ConvConfig& config) {
  constexpr int64_t kMostShared = 160;  // words of a row that images share
  const bool half = is_half(config.dtype), aligned = config.alignment >= 16;
  const bool split = !half && config.precision == Precision::Float32;
  const int multiprocessors = device_traits().multiprocessors;
  Road road{p, plan_dense_weight(p, split, aligned, multiprocessors, half ? 2 : 4)};
  if (half) return road;
  for (int64_t together = 1; together == 1 || (together < 2 * p.batch && p.stride[2] == 1 &&
                                               together * shared_pitch(p, together) <= kMostShared);
       together *= 2) {
    const Road copies = road_over_copies(p, together, split, aligned, multiprocessors);
    if (copies.plan.valid && (!road.plan.valid || copies.plan.milliseconds < road.plan.milliseconds)) road = copies;
  }
  return road;
}

bool supports(const ConvProblem& problem, const ConvConfig& config) {
  if (config.pass != ConvPass::BackwardWeight || (config.dtype != DType::Float32 && !is_half(config.dtype)))
    return false;
  if (!device_traits().is_hopper()) return false;
  if (problem.groups > 1 && (problem.in_channels_per_group() < 8 || problem.out_channels_per_group() < 8)) return false;
  return kept_plan<make_road>(problem, config)->plan.valid;
}

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  return kept_plan<make_road>(problem, config)->workspace_bytes();
}

double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  // Half types were seen to take 1.1 to 2 times what the plan, which was fitted to float32, says.
  return kept_plan<make_road>(problem, config)->plan.milliseconds * (is_half(config.dtype) ? 1.5 : 1);
}

/// The operand, or its copy, which it makes at `to`.
const void* with_rows(const void* operand, const Road& road, int64_t images, int64_t rows, int64_t width,
                      int64_t copy_width, std::byte* to, std::size_t copy_bytes, cudaStream_t stream) {
  if (copy_bytes == 0) return operand;
  const int64_t quads = road.problem.batch * rows * copy_width / 4,
                pitch = road.together == 1 ? copy_width : road.pitch;
  const auto divide = [](int64_t by) { return FastDivide(static_cast<uint32_t>(by)); };
  const SharedRows shared{static_cast<int>(width), images,       divide(road.together),
                          divide(pitch),           divide(rows), divide(copy_width / 4)};
  constexpr int64_t kMostBlocks = 132 * 16;
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((quads + kThreads - 1) / kThreads, kMostBlocks));
  launch("dense_weight rows", copy_rows, dim3(blocks), dim3(kThreads), 0, stream, static_cast<const float*>(operand),
         reinterpret_cast<float4*>(to), quads, shared);
  return to;
}

template <class T, bool Split>
void accumulate(const DenseWeightPlan& plan, const void* gathered, const void* streamed, double* partial,
                cudaStream_t stream) {
  switch (plan.tile_columns) {
    case 16: return launch_dense_weight<T, 16, Split>(plan, gathered, streamed, partial, stream);
    case 32: return launch_dense_weight<T, 32, Split>(plan, gathered, streamed, partial, stream);
    case 48: return launch_dense_weight<T, 48, Split>(plan, gathered, streamed, partial, stream);
    case 64: return launch_dense_weight<T, 64, Split>(plan, gathered, streamed, partial, stream);
    case 96: return launch_dense_weight<T, 96, Split>(plan, gathered, streamed, partial, stream);
    case 128: return launch_dense_weight<T, 128, Split>(plan, gathered, streamed, partial, stream);
    default: break;
  }
  if constexpr (!Split && sizeof(T) == 4) {  // wider ones where folded taps fill them
    if (plan.tile_columns == 144) return launch_dense_weight<T, 144, Split>(plan, gathered, streamed, partial, stream);
    if (plan.tile_columns == 192) return launch_dense_weight<T, 192, Split>(plan, gathered, streamed, partial, stream);
  }
  fail<InternalError>("dense_weight: no tile of ", plan.tile_columns, " columns");
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const auto kept = kept_plan<make_road>(problem, config);
  const Road& road = *kept;
  const DenseWeightPlan& plan = road.plan;
  auto* copies = static_cast<std::byte*>(operands.workspace) + road.partial_bytes();
  const void* const x_rows =
      with_rows(operands.x, road, problem.batch, problem.in_channels * problem.input[0] * problem.input[1],
                problem.input[2], road.problem.input[2], copies, road.x_copy, stream);
  const void* const y_rows =
      with_rows(operands.y, road, problem.batch, problem.out_channels * problem.output[0] * problem.output[1],
                problem.output[2], road.problem.output[2], copies + road.x_copy, road.y_copy, stream);
  auto* partial = static_cast<double*>(operands.workspace);
  dispatch_products(config, [&]<class T, bool Split>(std::type_identity<T>, std::bool_constant<Split>) {
    accumulate<T, Split>(plan, plan.swapped ? y_rows : x_rows, plan.swapped ? x_rows : y_rows, partial, stream);
    ordered_sum<T>(problem, operands, plan.geometry.splits, stream, DenseWeightOrder{plan.geometry, plan.swapped},
                   true);
  });
}

}  // namespace

const Algorithm kDenseWeight{"dense_weight", supports, workspace_bytes, predict_ms, run};

}  // namespace halo::cuda::conv
