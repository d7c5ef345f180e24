// Tile shapes of the dense weight gradient, float32-accurate, 64 to 128 columns.
#include "dense_weight.cuh"

namespace halo::cuda::conv {

template void launch_dense_weight<float, 64, true>(const DenseWeightPlan&, const void*, const void*, double*,
                                                   cudaStream_t);
template void launch_dense_weight<float, 96, true>(const DenseWeightPlan&, const void*, const void*, double*,
                                                   cudaStream_t);
template void launch_dense_weight<float, 128, true>(const DenseWeightPlan&, const void*, const void*, double*,
                                                    cudaStream_t);

}  // namespace halo::cuda::conv
