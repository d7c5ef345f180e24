#include "streams_launch.cuh"

namespace halo::cuda::conv::streams {

template void launch_gather<Float16>(const Plan&, const Arguments<Float16>&, const PlainSumOf<Float16>&, cudaStream_t);

}  // namespace halo::cuda::conv::streams
