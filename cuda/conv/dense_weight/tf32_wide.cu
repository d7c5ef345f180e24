// Tile shapes of the dense weight gradient, TF32, 64 to 128 columns.
#include "dense_weight.cuh"

namespace halo::cuda::conv {

template void launch_dense_weight<float, 64, false>(const DenseWeightPlan&, const void*, const void*, double*,
                                                    cudaStream_t);
template void launch_dense_weight<float, 96, false>(const DenseWeightPlan&, const void*, const void*, double*,
                                                    cudaStream_t);
template void launch_dense_weight<float, 128, false>(const DenseWeightPlan&, const void*, const void*, double*,
                                                     cudaStream_t);

}  // namespace halo::cuda::conv
