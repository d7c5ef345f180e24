#include "depthwise_half_march.cuh"
#include "depthwise_half_weight.cuh"

namespace halo::cuda::conv::depthwise {

template void launch_bands(int, const BandParams<BFloat16>&, cudaStream_t);
template void launch_half_weight(const HalfWeightParams<BFloat16>&, cudaStream_t);

}  // namespace halo::cuda::conv::depthwise
