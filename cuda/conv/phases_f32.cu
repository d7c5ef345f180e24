#include "phases_launch.cuh"

namespace halo::cuda::conv::phases {

template void launch_phases<float>(const Plan&, const Arguments<float>&, const PlainSumOf<float>&, cudaStream_t);

}  // namespace halo::cuda::conv::phases
