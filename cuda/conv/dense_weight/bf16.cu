// Tile shapes of the dense weight gradient for bfloat16.
#include "dense_weight.cuh"

namespace halo::cuda::conv {

template void launch_dense_weight<BFloat16, 16, false>(const DenseWeightPlan&, const void*, const void*, double*,
                                                       cudaStream_t);
template void launch_dense_weight<BFloat16, 32, false>(const DenseWeightPlan&, const void*, const void*, double*,
                                                       cudaStream_t);
template void launch_dense_weight<BFloat16, 48, false>(const DenseWeightPlan&, const void*, const void*, double*,
                                                       cudaStream_t);
template void launch_dense_weight<BFloat16, 64, false>(const DenseWeightPlan&, const void*, const void*, double*,
                                                       cudaStream_t);
template void launch_dense_weight<BFloat16, 96, false>(const DenseWeightPlan&, const void*, const void*, double*,
                                                       cudaStream_t);
template void launch_dense_weight<BFloat16, 128, false>(const DenseWeightPlan&, const void*, const void*, double*,
                                                        cudaStream_t);

}  // namespace halo::cuda::conv
