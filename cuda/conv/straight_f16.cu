#include "straight_launch.cuh"

namespace halo::cuda::conv::straight {

template void launch_straight<Float16, false>(const Plan&, const Arguments<Float16>&, const PlainSumOf<Float16>&,
                                              cudaStream_t);
template void launch_weight<Float16>(const WeightPlan&, const Float16*, const Float16*, double*, cudaStream_t);

}  // namespace halo::cuda::conv::straight
