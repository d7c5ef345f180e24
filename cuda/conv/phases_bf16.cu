#include "phases_launch.cuh"

namespace halo::cuda::conv::phases {

template void launch_phases<BFloat16>(const Plan&, const Arguments<BFloat16>&, const PlainSumOf<BFloat16>&,
                                      cudaStream_t);

}  // namespace halo::cuda::conv::phases
