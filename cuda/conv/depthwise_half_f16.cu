#include "depthwise_half_march.cuh"
#include "depthwise_half_weight.cuh"

namespace halo::cuda::conv::depthwise {

template void launch_bands(int, const BandParams<Float16>&, cudaStream_t);
template void launch_half_weight(const HalfWeightParams<Float16>&, cudaStream_t);

}  // namespace halo::cuda::conv::depthwise
