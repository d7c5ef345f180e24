#include "streams_weight.cuh"

namespace halo::cuda::conv::streams {

template void launch_weight<Float16>(const WeightPlan&, const WeightArguments<Float16>&, cudaStream_t);

}  // namespace halo::cuda::conv::streams
