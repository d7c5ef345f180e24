// Convolutions with few channels a group on the tensor cores, from a tile in shared memory: any stride and dilation,
// ordinary and transposed.
//
// Limits: at most 16 channels a group on either side, or 4 on one and 64 on the other; at most 12 taps and stride 8 an
// axis; extents below 2^30 after axes that the kernel does not touch are merged; a tile of 16 neighbouring positions
// with its reach fits in shared memory; float32, bfloat16 and float16. No limits on alignment, padding or the number of
// groups. float32 keeps float32 accuracy (operands split in two TF32 numbers), unless Precision::TF32 asks for one. The
// half types are exact in TF32.
#include "../algorithms.h"
#include "../family.cuh"
#include "../ordered_sum.cuh"
#include "gather.cuh"
#include "weight.cuh"

namespace halo::cuda::conv {
namespace small_groups {
namespace {

/// Calls f with the step of the width as a constant: 1, 2, or 0 for all others. Only split operands have instructions
/// to save there.
template <bool Split, class F>
void with_step(int step, F&& f) {
  if constexpr (Split) {
    if (step == 1) return f(std::integral_constant<int, 1>{});
    if (step == 2) return f(std::integral_constant<int, 2>{});
  }
  f(std::integral_constant<int, 0>{});
}

constexpr Algorithm kGather = gather_family<gather_plan>(
    "small groups", []<class T, bool Split>(const GatherPlan& plan, const GatherCall<T, Split>& call) {
      const auto start = [&](auto kernel) {
        launch("conv small groups", kernel, dim3(static_cast<unsigned>(plan.blocks)),
               dim3(static_cast<unsigned>(plan.warps * 32)), plan.shared_bytes, call.stream, plan, call.arguments,
               call.plain);
      };
      with_step<Split>(plan.problem.step[2], [&]<int Step>(std::integral_constant<int, Step>) {
        const bool few = plan.row_tiles == 2;
        switch (plan.column_tiles) {
          case 1: return few ? start(gather_kernel<T, Split, Step, 2, 1>) : start(gather_kernel<T, Split, Step, 4, 1>);
          case 2: return few ? start(gather_kernel<T, Split, Step, 2, 2>) : start(gather_kernel<T, Split, Step, 4, 2>);
          default: return start(gather_kernel<T, Split, Step, 2, 4>);
        }
      });
    });

constexpr Algorithm kWeight = weight_family<weight_plan>(
    "small groups", []<class T, bool Split>(const WeightPlan& plan, const WeightCall<T, Split>& call) {
      const Operands& operands = call.operands;
      const auto start = [&](auto kernel) {
        launch("conv small groups backward_weight", kernel, dim3(static_cast<unsigned>(plan.blocks)),
               dim3(static_cast<unsigned>(plan.warps * 32)), plan.shared_bytes, call.stream, plan,
               WeightArguments<T>{static_cast<const T*>(operands.x), static_cast<const T*>(operands.y),
                                  static_cast<double*>(operands.workspace)});
      };
      with_step<Split>(plan.problem.step[2], [&]<int Step>(std::integral_constant<int, Step>) {
        switch (plan.column_tiles) {
          case 1: return start(weight_kernel<T, Split, Step, 7, 1>);
          case 2: return start(weight_kernel<T, Split, Step, 4, 2>);
          default: return start(weight_kernel<T, Split, Step, 2, 4>);
        }
      });
      ordered_sum<T>(call.problem, operands, plan.splits, call.stream);
    });

}  // namespace
}  // namespace small_groups

const Algorithm kSmallGroups = joined_family<small_groups::kGather, small_groups::kWeight>("small groups");

}  // namespace halo::cuda::conv
