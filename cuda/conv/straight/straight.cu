// Convolutions of few channels straight from global memory, on the tensor cores of every GPU since 8.0.
//
// Limits: one group, at most 256 channels (float32: 64 result channels), 12 taps and stride 8 an axis; weights that fit
// in shared memory as fragments; extents below 2^30; float32, bfloat16 and float16. backward_weight: of half types
// alone. Any padding, dilation and alignment.
#include "../algorithms.h"
#include "../family.cuh"
#include "../ordered_sum.cuh"
#include "kernel.cuh"
#include "weight_taps.cuh"

namespace halo::cuda::conv {
namespace straight {

/// Of weight_runs.cu.
template <class T>
void launch_weight_runs(const WeightPlan& plan, const T* x, const T* y, double* partials, cudaStream_t stream);

namespace {

constexpr Algorithm kGather = gather_family<plan_straight>(
    "straight", []<class T, bool Split>(const Plan& plan, const GatherCall<T, Split>& call) {
      const auto start = [&](auto kernel) {
        launch("conv straight", kernel,
               dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.rows_of_blocks)),
               dim3(static_cast<unsigned>(plan.warps * 32)), plan.shared_bytes, call.stream, plan, call.arguments,
               call.plain);
      };
      if (plan.column_tiles == 8)
        return plan.packs ? start(straight_kernel<T, Split, 8, true>) : start(straight_kernel<T, Split, 8, false>);
      return plan.packs ? start(straight_kernel<T, Split, 4, true>) : start(straight_kernel<T, Split, 4, false>);
    });

template <class T>
void launch_weight(const WeightPlan& plan, const WeightArguments<T>& arguments, cudaStream_t stream) {
  if (!plan.packs)
    return plan.engine ? launch_weight_engine(plan, arguments, stream)
                       : launch_weight_taps<T, false>(plan, arguments, stream);
  if (plan.leads != Leads::None) return launch_weight_runs(plan, arguments.x, arguments.y, arguments.partials, stream);
  launch("conv straight backward_weight", weight_packs_kernel<T>,
         dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.rows_of_blocks)), kWeightThreads,
         plan.shared_bytes, stream, plan, arguments);
}

constexpr Algorithm kWeight = weight_family<plan_weight>(
    "straight", []<class T, bool Split>(const WeightPlan& plan, const WeightCall<T, Split>& call) {
      if constexpr (sizeof(T) == 2) {
        const Operands& operands = call.operands;
        launch_weight<T>(plan,
                         {static_cast<const T*>(operands.x), static_cast<const T*>(operands.y),
                          static_cast<double*>(operands.workspace)},
                         call.stream);
        ordered_sum<T>(call.problem, operands, static_cast<int>(plan.splits), call.stream, WeightsInOrder{},
                       plan.engine && !plan.packs);
      }
    });

}  // namespace
}  // namespace straight

const Algorithm kStraight = joined_family<straight::kGather, straight::kWeight>("straight");

}  // namespace halo::cuda::conv
