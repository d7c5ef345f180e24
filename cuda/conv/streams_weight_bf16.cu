#include "streams_weight.cuh"

namespace halo::cuda::conv::streams {

template void launch_weight<BFloat16>(const WeightPlan&, const WeightArguments<BFloat16>&, cudaStream_t);

}  // namespace halo::cuda::conv::streams
