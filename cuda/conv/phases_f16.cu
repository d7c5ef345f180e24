#include "phases_launch.cuh"

namespace halo::cuda::conv::phases {

template void launch_phases<Float16>(const Plan&, const Arguments<Float16>&, const PlainSumOf<Float16>&, cudaStream_t);

}  // namespace halo::cuda::conv::phases
