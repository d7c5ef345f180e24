// The weight gradient is in small_groups_weight_f32.cu, so that both compile at once.
#include "small_groups_launch.cuh"

namespace halo::cuda::conv::small_groups {

template void launch_gather(const GatherPlan&, const GatherArguments<float>&, bool, cudaStream_t);

}  // namespace halo::cuda::conv::small_groups
