#include "small_groups_launch.cuh"

namespace halo::cuda::conv::small_groups {

template void launch_weight(const WeightPlan&, const WeightArguments<float>&, bool, cudaStream_t);

}  // namespace halo::cuda::conv::small_groups
