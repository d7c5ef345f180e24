// The dense engine: forward and backward_input on Hopper's tensor cores, float32-accurate or TF32.
//
// Limits: float32 storage, compute capability 9.0, any extents, strides, paddings and dilations whose spatial planes
// stay below 2^31 positions and whose halo tile fits shared memory; any groups, though groups of fewer than 8 channels
// waste most of the tensor core; at most 16 separate phases of a strided backward_input. Otherwise another kernel runs.
#include "../launch.h"
#include "../runtime/tensor_map.h"
#include "../runtime/traits.h"
#include "algorithms.h"
#include "dense_launch.h"
#include "plan_key.h"

namespace halo::cuda::conv {
namespace {

std::optional<DensePlan> make_plan(const ConvProblem& problem, const ConvConfig& config) {
  const DeviceTraits& device = device_traits();
  return device.is_hopper() ? plan_dense(problem, config, device.multiprocessors) : std::nullopt;
}

std::shared_ptr<const std::optional<DensePlan>> plan_for(const ConvProblem& problem, const ConvConfig& config) {
  return kept_plan<make_plan>(problem, config);
}

bool supports(const ConvProblem& problem, const ConvConfig& config) { return plan_for(problem, config)->has_value(); }

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  return plan_for(problem, config)->value().workspace_bytes;
}

std::size_t prepared_bytes(const ConvProblem& problem, const ConvConfig& config) {
  return plan_for(problem, config)->value().weight_bytes;
}

void prepare(const ConvProblem& problem, const ConvConfig& config, const void* w, void* prepared, cudaStream_t stream) {
  prepare_dense(plan_for(problem, config)->value(), static_cast<const float*>(w),
                config.precision == Precision::Float32, static_cast<float*>(prepared), stream);
}

double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  return plan_for(problem, config)->value().predicted_ms;
}

/// Whether the epilogue's max(x, slope * x) cannot express the activation.
bool is_smooth(const Activation& activation) {
  switch (activation.kind) {
    case ActivationKind::None:
    case ActivationKind::Relu: return false;
    case ActivationKind::LeakyRelu: return !(activation.slope <= 1);
    default: return true;
  }
}

float negative_slope(const Activation& activation) {
  if (is_smooth(activation) || activation.kind == ActivationKind::None) return 1;
  return activation.kind == ActivationKind::Relu ? 0 : activation.slope;
}

/// The source as width x height x depth x channels x (image, group); a box is the halo of a chunk of channels.
CUtensorMap source_map(const DenseParams& p) {
  const auto width = static_cast<cuuint64_t>(p.source_extent[2]), height = static_cast<cuuint64_t>(p.source_extent[1]);
  const auto depth = static_cast<cuuint64_t>(p.source_extent[0]), plane = static_cast<cuuint64_t>(p.source_plane);
  const auto channels = static_cast<cuuint64_t>(p.channels);
  const auto images = static_cast<cuuint64_t>(p.source_numel) / (plane * channels);
  const int box_depth = p.plane_pitch / (p.halo_height * p.halo_pitch);
  return tensor_map(p.source, {width, height, depth, channels, images},
                    {width, width * height, plane, plane * channels},
                    {static_cast<cuuint32_t>(p.halo_pitch), static_cast<cuuint32_t>(p.halo_height),
                     static_cast<cuuint32_t>(box_depth), static_cast<cuuint32_t>(p.chunk_channels), 1},
                    false);
}

void run(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  run_dense(plan_for(problem, config)->value(), config, operands, stream);
}

}  // namespace

void run_dense(const DensePlan& plan, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const bool accurate = config.precision == Precision::Float32;
  const bool split = plan.splits > 1;
  const auto* weights = static_cast<const float*>(operands.w);
  const auto* bias = plan.forward && config.bias ? static_cast<const float*>(operands.bias) : nullptr;
  const Activation activation = plan.forward ? config.activation : Activation{};
  auto* workspace = static_cast<std::byte*>(operands.workspace);
  auto* partial = reinterpret_cast<float*>(workspace + plan.weight_bytes);
  auto* target = static_cast<float*>(plan.forward ? operands.y : operands.x);

  DenseParams params = plan.params;
  params.source = static_cast<const float*>(plan.forward ? operands.x : operands.y);
  params.weights = static_cast<const float*>(operands.prepared != nullptr ? operands.prepared : operands.workspace);
  params.bias = split ? nullptr : bias;
  params.target = split ? partial : target;
  params.activation = split ? Activation{} : activation;
  params.negative_slope = negative_slope(params.activation);
  params.smooth = is_smooth(params.activation);
  params.finish = !split;
  const PlainSum plain{Sizes(plan.problem), params.source, weights, plan.forward};

  if (plan.clear_target) {
    const auto numel = static_cast<std::size_t>(plan.forward ? plan.problem.y_numel() : plan.problem.x_numel());
    check(cudaMemsetAsync(params.target, 0, numel * sizeof(float) * static_cast<std::size_t>(plan.splits), stream),
          "conv dense");
  }
  const bool prepare_now = operands.prepared == nullptr;
  if (prepare_now) prepare_dense(plan, weights, accurate, static_cast<float*>(operands.workspace), stream);
  const int pair = plan.params.pair;
  const int blocks = std::min(plan.params.work_items, device_traits().multiprocessors >> pair) << pair;
  const CUtensorMap map = params.boxed ? source_map(params) : CUtensorMap{};
  const auto multiply = [&] {
    switch (kDenseVariants[plan.variant].shapes()) {
      case DenseShapes::Narrow:
        return accurate ? multiply_dense<3, DenseShapes::Narrow> : multiply_dense<1, DenseShapes::Narrow>;
      case DenseShapes::Wide:
        return accurate ? multiply_dense<3, DenseShapes::Wide> : multiply_dense<1, DenseShapes::Wide>;
      default: return accurate ? multiply_dense<3, DenseShapes::Storers> : multiply_dense<1, DenseShapes::Storers>;
    }
  }();
  multiply(plan, params, plain, blocks, map, prepare_now, stream);
  if (split) reduce_dense(plan, partial, bias, activation, plain, target, stream);
}

const Algorithm kDense{"dense", supports, workspace_bytes, predict_ms, run, prepared_bytes, prepare};

}  // namespace halo::cuda::conv
