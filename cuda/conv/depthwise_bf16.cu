#include "depthwise_launch.cuh"

namespace halo::cuda::conv::depthwise {

template void launch_march(const MarchShape&, const MarchParams<BFloat16>&, cudaStream_t);
template void launch_march_weight(const MarchShape&, const MarchWeightParams<BFloat16>&, cudaStream_t);

}  // namespace halo::cuda::conv::depthwise
