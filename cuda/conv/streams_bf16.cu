#include "streams_launch.cuh"

namespace halo::cuda::conv::streams {

template void launch_gather<BFloat16>(const Plan&, const Arguments<BFloat16>&, const PlainSumOf<BFloat16>&,
                                      cudaStream_t);

}  // namespace halo::cuda::conv::streams
