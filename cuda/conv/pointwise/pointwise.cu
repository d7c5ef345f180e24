// Forward and backward_input of kernels of one tap, at memory speed.
//
// Limits: compute capability 9.0; one group, stride 1, no padding; as many source channels as leave room for two
// stages beside the weights of 128 result channels (float32: 128; 160 with 64 results); float32, bfloat16 and float16.
// Planes that are not whole aligned granules take kernels of their own (`ragged`).
#include <algorithm>

#include "../../runtime/tensor_map.h"
#include "../../runtime/traits.h"
#include "../algorithms.h"
#include "../family.cuh"
#include "kernel.cuh"

namespace halo::cuda::conv {
namespace pointwise {
namespace {

/// Neighbouring tiles that a block takes one after the other: many, as lines at a run's ends are written in two parts,
/// but such that the blocks have as many.
int best_run(int64_t tiles, int64_t images, int64_t blocks) {
  constexpr int kMost = 16;
  constexpr double kEnds = 0.3;  // tiles
  int best = 1;
  double least = 0;
  for (int run = 1; run <= std::min<int64_t>(kMost, tiles); ++run) {
    const int64_t items = (tiles + run - 1) / run * images;
    const double time = static_cast<double>((items + blocks - 1) / blocks) * (run + kEnds);
    if (run == 1 || time <= least) best = run, least = time;
  }
  return best;
}

/// `blocks` is 0 where there is none. `source`: where the source begins, if that is known.
Plan make_plan(const ConvProblem& problem, const ConvConfig& config, const void* source = nullptr) {
  constexpr ConvProblem::Extents kOnes{1, 1, 1}, kZeros{0, 0, 0};
  constexpr int kMostChannels = 1024;
  Plan plan{};
  const bool half = is_half(config.dtype), forward = config.pass == ConvPass::Forward;
  if ((!half && config.dtype != DType::Float32) || config.pass == ConvPass::BackwardWeight) return plan;
  if (!device_traits().is_hopper()) return plan;
  if (problem.groups != 1 || problem.kernel != kOnes || problem.stride != kOnes || problem.padding_before != kZeros ||
      problem.input != problem.output || problem.x_numel() == 0 || problem.y_numel() == 0)
    return plan;
  const int64_t plane = problem.input_positions(), words = half ? (plane + 1) / 2 : plane;
  const int64_t sources = forward ? problem.in_channels : problem.out_channels;
  const int64_t results = forward ? problem.out_channels : problem.in_channels;
  if (words >= int64_t{1} << 29 || std::max(results, sources) > kMostChannels) return plan;
  plan.ragged = config.alignment < 16 || plane % (half ? 8 : 4) != 0;
  plan.plane = static_cast<int>(plane);
  const int size = half ? 2 : 4;
  plan.same_leads = plane * size % 16 == 0;
  if (plan.ragged && plan.same_leads) plan.shift = static_cast<int>(reinterpret_cast<uintptr_t>(source) % 16) / size;
  plan.words = static_cast<int>(words);
  plan.source_channels = static_cast<int>(sources);
  plan.result_channels = static_cast<int>(results);
  plan.chunks = (plan.source_channels + kChunk - 1) / kChunk;
  const bool split = !half && config.precision == Precision::Float32;
  const int element = split ? 8 : half ? 2 : 4;  // bytes of all parts
  int64_t fixed = 0, room = 0;
  // Planes that begin anywhere need more room: perhaps that of half of the result channels.
  for (plan.column_groups = results > kColumns ? 2 : 1; plan.column_groups > 0; --plan.column_groups) {
    // So that the granules of a lane's eight neighbours are in different banks.
    const int apart = half ? 16 : 32;
    plan.source_pitch = plan.boxes() * 128 + apart;
    plan.result_pitch = kLine + plan.source_pitch;
    plan.weight_bytes = plan.column_groups * kColumns * plan.chunks * kChunk * element;
    fixed = int64_t{kFixedBytes} + plan.weight_bytes + plan.result_bytes();
    room = static_cast<int64_t>(device_traits().block_memory) - kStaticBytes - fixed;
    if (!plan.ragged || room >= 2 * plan.stage_bytes()) break;
  }
  if (plan.column_groups == 0 || room < 2 * plan.stage_bytes()) return plan;
  const int columns = plan.column_groups * kColumns;
  plan.column_blocks = (plan.result_channels + columns - 1) / columns;
  plan.stages = static_cast<int>(std::min<int64_t>(kMostStages, room / plan.stage_bytes()));
  plan.weight_source = forward ? 1 : problem.in_channels;
  plan.weight_result = forward ? problem.in_channels : 1;
  const int64_t shift = (plan.shift * size + 3) / 4;  // words
  const int64_t tile = 256 / plan.column_groups, tiles = (words + shift + tile - 1) / tile;
  const int most_blocks = std::max(1, device_traits().multiprocessors / plan.column_blocks);
  plan.plane_tiles = static_cast<int>(tiles);
  if (plan.ragged) plan.run = best_run(tiles, problem.batch, most_blocks);
  const int64_t runs = (tiles + plan.run - 1) / plan.run;
  plan.items = runs * problem.batch;
  if (plan.items >= int64_t{1} << 31) return plan;
  plan.tiles = FastDivide(static_cast<uint32_t>(runs));
  const Activation& activation = config.activation;
  if (forward && activation.kind != ActivationKind::None) {
    const bool relu = activation.kind == ActivationKind::Relu;
    plan.smooth = !relu && !(activation.kind == ActivationKind::LeakyRelu && activation.slope <= 1);
    plan.slope = relu ? 0 : activation.slope;
  }
  plan.shared_bytes = static_cast<std::size_t>(fixed + plan.stages * plan.stage_bytes());
  plan.blocks = static_cast<int>(std::min<int64_t>(plan.items, most_blocks));
  // As seen on an H200: bytes, or a block's items one after the other.
  constexpr double kReadPerMs = 4.75e9, kWrittenPerMs = 3.08e9, kClocksPerMs = 1.755e6, kStartMs = 8e-3;
  const double channel = static_cast<double>(problem.batch * plane) * (half ? 2 : 4);
  double bytes =
      channel * static_cast<double>(sources) / kReadPerMs + channel * static_cast<double>(results) / kWrittenPerMs;
  double clocks = split ? 1500 + 2000 * plan.chunks : 2500 + 1000 * plan.chunks;
  if (plan.ragged) {
    bytes *= 1.08;
    clocks = half ? 5000 + 1100 * plan.chunks : 2000 + (split ? 2500 : 2000) * plan.chunks;
    clocks += (split ? 14 : 10) * std::min(columns, plan.result_channels);
  }
  const auto turns = static_cast<double>((plan.items + plan.blocks - 1) / plan.blocks * plan.run);
  plan.predicted_ms = kStartMs + std::max(bytes, turns * clocks / kClocksPerMs);
  return plan;
}

bool supports(const ConvProblem& problem, const ConvConfig& config) { return make_plan(problem, config).blocks > 0; }
double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  return make_plan(problem, config).predicted_ms;
}

template <class T, bool Split>
void run_as(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const GatherCall<T, Split> call(problem, config, operands, stream);
  const auto& tensors = call.arguments;
  const Plan plan = make_plan(problem, config, tensors.source);
  const auto map = [&](const T* data, int channels, cuuint32_t box) {
    if (plan.ragged) return CUtensorMap{};
    const auto words = static_cast<cuuint64_t>(plan.words), lines = static_cast<cuuint64_t>(channels);
    return tensor_map(data, {words, lines, static_cast<cuuint64_t>(problem.batch)}, {words, words * lines},
                      {32, box, 1}, true);
  };
  launch("conv pointwise", plan.ragged ? pointwise_kernel<T, Split, true> : pointwise_kernel<T, Split, false>,
         dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.column_blocks)), kThreads,
         plan.shared_bytes, stream, plan,
         Arguments<T>{tensors, call.plain, map(tensors.source, plan.source_channels, kChunk),
                      map(tensors.result, plan.result_channels, kColumns)});
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  dispatch_products(config, [&]<class T, bool Split>(std::type_identity<T>, std::bool_constant<Split>) {
    run_as<T, Split>(problem, config, operands, stream);
  });
}

}  // namespace
}  // namespace pointwise

const Algorithm kPointwise{"pointwise", pointwise::supports, no_workspace, pointwise::predict_ms, pointwise::run};

}  // namespace halo::cuda::conv
