// Convolutions with at most 4 channels a group at memory speed: threads march over rows.
//
// Limits: at most 4 channels a group on either side, not depthwise; more than one tap along height and width; along the
// height one tap, or stride and dilation 1; along the width stride 1, and one tap or dilation 1; any along the depth.
// Forward and backward_input: stride 1, one tap along the depth, at most 3 x 3. Fewer than 2^30 positions over the
// batch; float32, bfloat16 and float16. Any padding and alignment; bias, but no activation.
#include <utility>

#include "../algorithms.h"
#include "../family.cuh"
#include "march_gather.cuh"
#include "march_weight.cuh"

namespace halo::cuda::conv {
namespace small_groups {
namespace {

/// Calls f with the shape as a constant.
template <class F>
void with_march_shape(int shape, const F& f) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    ((shape == I ? f(std::integral_constant<int, I>{}) : void()), ...);
  }
  (std::make_integer_sequence<int, std::size(kMarchShapes)>{});
}

constexpr Algorithm kMarchGather = gather_family<march_plan>(
    "small groups march", []<class T, bool Split>(const MarchPlan& plan, const GatherCall<T, Split>& call) {
      with_march_shape(plan.shape, [&]<int I>(std::integral_constant<int, I>) {
        launch("conv small groups march", march_gather<T, I>, dim3(static_cast<unsigned>(plan.blocks)),
               dim3(kMarchThreads), 0, call.stream, plan, call.arguments, call.plain);
      });
    });

constexpr Algorithm kMarchWeight = weight_family<march_plan>(
    "small groups march", []<class T, bool Split>(const MarchPlan& plan, const WeightCall<T, Split>& call) {
      const Operands& operands = call.operands;
      with_march_shape(plan.shape, [&]<int I>(std::integral_constant<int, I>) {
        launch("conv small groups march backward_weight", march_weight<T, I>, dim3(static_cast<unsigned>(plan.blocks)),
               dim3(kMarchThreads), 0, call.stream, plan, static_cast<const T*>(operands.x),
               static_cast<const T*>(operands.y), static_cast<double*>(operands.workspace));
      });
      ordered_sum<T>(call.problem, operands, plan.splits, call.stream);
    });

}  // namespace
}  // namespace small_groups

const Algorithm kSmallGroupsMarch =
    joined_family<small_groups::kMarchGather, small_groups::kMarchWeight>("small groups march");

}  // namespace halo::cuda::conv
