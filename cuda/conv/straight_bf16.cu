#include "straight_launch.cuh"

namespace halo::cuda::conv::straight {

template void launch_straight<BFloat16, false>(const Plan&, const Arguments<BFloat16>&, const PlainSumOf<BFloat16>&,
                                               cudaStream_t);
template void launch_weight<BFloat16>(const WeightPlan&, const BFloat16*, const BFloat16*, double*, cudaStream_t);

}  // namespace halo::cuda::conv::straight
