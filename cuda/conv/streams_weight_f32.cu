#include "streams_weight.cuh"

namespace halo::cuda::conv::streams {

template void launch_weight<float>(const WeightPlan&, const WeightArguments<float>&, cudaStream_t);

}  // namespace halo::cuda::conv::streams
