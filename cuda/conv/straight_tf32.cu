#include "straight_launch.cuh"

namespace halo::cuda::conv::straight {

template void launch_straight<float, false>(const Plan&, const Arguments<float>&, const PlainSumOf<float>&,
                                            cudaStream_t);

}  // namespace halo::cuda::conv::straight
