#include "streams_launch.cuh"

namespace halo::cuda::conv::streams {

template void launch_gather<float>(const Plan&, const Arguments<float>&, const PlainSumOf<float>&, cudaStream_t);

}  // namespace halo::cuda::conv::streams
