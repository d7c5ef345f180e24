#include "../launch.h"
#include "small_groups_ring.cuh"

namespace halo::cuda::conv::small_groups {

void launch_ring(const RingPlan& plan, const GatherArguments<float>& arguments, const ConvProblem& problem,
                 ConvPass pass, cudaStream_t stream) {
  const PlainSum plain{Sizes(problem), arguments.source, arguments.weight, pass == ConvPass::Forward};
  const auto start = [&](auto kernel) {
    launch("conv small groups", kernel, dim3(static_cast<unsigned>(plan.blocks)),
           dim3(static_cast<unsigned>((plan.warps + kRingHelpers) * 32)), plan.shared_bytes, stream, plan, arguments,
           plain);
  };
  switch (plan.column_tiles) {
    case 1:
      return plan.row_tiles == 2 ? start(ring_kernel<float, true, 1, 2, 1>) : start(ring_kernel<float, true, 1, 4, 1>);
    case 2: return start(ring_kernel<float, true, 1, 2, 2>);
    default: return start(ring_kernel<float, true, 1, 2, 4>);
  }
}

}  // namespace halo::cuda::conv::small_groups
