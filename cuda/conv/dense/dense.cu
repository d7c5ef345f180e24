// The dense engine: forward and backward_input on Hopper's tensor cores, float32-accurate or TF32.
//
// Limits: float32 or half types (without the activations that take a second look at results), compute capability 9.0,
// any extents, strides, paddings and dilations whose spatial planes stay below 2^31 positions and whose halo tile fits
// shared memory; any groups, though groups of fewer than 8 channels waste most of the tensor core; at most 16 separate
// phases of a strided backward_input. Otherwise another kernel runs.
#include "../../launch.h"
#include "../../runtime/tensor_map.h"
#include "../../runtime/traits.h"
#include "../algorithms.h"
#include "../plan_key.h"
#include "../storage.h"
#include "launch.h"

namespace halo::cuda::conv {
namespace {

std::optional<DensePlan> make_plan(const ConvProblem& problem, const ConvConfig& config) {
  const DeviceTraits& device = device_traits();
  return device.is_hopper() ? plan_dense(problem, config, device.multiprocessors) : std::nullopt;
}

std::shared_ptr<const std::optional<DensePlan>> plan_for(const ConvProblem& problem, const ConvConfig& config) {
  ConvConfig plain = config;  // no plan depends on these
  plain.bias = false;
  plain.activation = {};
  return kept_plan<make_plan>(problem, plain);
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

/// Float32 in three products; else, as half types are exact in TF32, one.
bool is_accurate(const ConvConfig& config) {
  return config.dtype == DType::Float32 && config.precision == Precision::Float32;
}

/// What a smooth activation looks at again must not have been rounded to a half type.
bool supports(const ConvProblem& problem, const ConvConfig& config) {
  if (is_half(config.dtype) && config.pass == ConvPass::Forward && is_smooth(config.activation)) return false;
  return plan_for(problem, config)->has_value();
}

std::size_t workspace_bytes(const ConvProblem& problem, const ConvConfig& config) {
  return plan_for(problem, config)->value().workspace_bytes;
}

std::size_t prepared_bytes(const ConvProblem& problem, const ConvConfig& config) {
  return plan_for(problem, config)->value().weight_bytes;
}

void prepare(const ConvProblem& problem, const ConvConfig& config, const void* w, void* prepared, cudaStream_t stream) {
  dispatch_storage(config.dtype, [&]<class T>(std::type_identity<T>) {
    prepare_dense(plan_for(problem, config)->value(), static_cast<const T*>(w), is_accurate(config),
                  static_cast<float*>(prepared), stream);
  });
}

double predict_ms(const ConvProblem& problem, const ConvConfig& config) {
  return plan_for(problem, config)->value().predicted_ms;
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

namespace {

/// The kernels of T for the plan's compiled shape. Half types are exact in TF32.
template <class T>
auto multiply_of(DenseShapes shapes, bool accurate) {
  if constexpr (sizeof(T) == 2) {
    return shapes == DenseShapes::Narrow ? multiply_dense<T, 1, DenseShapes::Narrow>
                                         : multiply_dense<T, 1, DenseShapes::Wide>;
  } else {
    switch (shapes) {
      case DenseShapes::Narrow:
        return accurate ? multiply_dense<T, 3, DenseShapes::Narrow> : multiply_dense<T, 1, DenseShapes::Narrow>;
      case DenseShapes::Wide:
        return accurate ? multiply_dense<T, 3, DenseShapes::Wide> : multiply_dense<T, 1, DenseShapes::Wide>;
      default:
        return accurate ? multiply_dense<T, 3, DenseShapes::Storers> : multiply_dense<T, 1, DenseShapes::Storers>;
    }
  }
}

template <class T>
void run_as(const DensePlan& plan, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  const bool accurate = is_accurate(config);
  const bool split = plan.splits > 1;
  const auto* weights = static_cast<const T*>(operands.w);
  const void* bias = plan.forward && config.bias ? operands.bias : nullptr;
  const Activation activation = plan.forward ? config.activation : Activation{};
  auto* workspace = static_cast<std::byte*>(operands.workspace);
  auto* partial = reinterpret_cast<float*>(workspace + plan.weight_bytes);
  void* const target = plan.forward ? operands.y : operands.x;

  DenseParams params = plan.params;
  params.source = plan.forward ? operands.x : operands.y;
  params.weights = static_cast<const float*>(operands.prepared != nullptr ? operands.prepared : operands.workspace);
  params.bias = split ? nullptr : bias;
  params.target = split ? partial : target;
  params.activation = split ? Activation{} : activation;
  params.negative_slope = negative_slope(params.activation);
  params.smooth = is_smooth(params.activation);
  params.finish = !split;
  const PlainSumOf<T> plain{Sizes(plan.problem), static_cast<const T*>(params.source), weights, plan.forward};

  if (plan.clear_target) {
    const auto numel = static_cast<std::size_t>(plan.forward ? plan.problem.y_numel() : plan.problem.x_numel());
    check(cudaMemsetAsync(params.target, 0, numel * sizeof(T) * static_cast<std::size_t>(plan.splits), stream),
          "conv dense");
  }
  const bool prepare_now = operands.prepared == nullptr;
  if (prepare_now) prepare_dense(plan, weights, accurate, static_cast<float*>(operands.workspace), stream);
  const int pair = plan.params.pair;
  const int blocks = std::min(plan.params.work_items, device_traits().multiprocessors >> pair) << pair;
  const CUtensorMap map = params.boxed ? source_map(params) : CUtensorMap{};
  multiply_of<T>(kDenseVariants[plan.variant].shapes(), accurate)(plan, params, plain, blocks, map, prepare_now,
                                                                  stream);
  if constexpr (sizeof(T) == 4) {
    if (split)
      reduce_dense(plan, partial, static_cast<const float*>(bias), activation, plain, static_cast<float*>(target),
                   stream);
  }
}

}  // namespace

void run_dense(const DensePlan& plan, const ConvConfig& config, const Operands& operands, cudaStream_t stream) {
  dispatch_storage(config.dtype, [&]<class T>(std::type_identity<T>) { run_as<T>(plan, config, operands, stream); });
}

const Algorithm kDense{"dense", supports, workspace_bytes, predict_ms, run, prepared_bytes, prepare};

}  // namespace halo::cuda::conv
