// Tile shapes of the dense weight gradient, float32-accurate, 16 to 48 columns.
#include "dense_weight.cuh"

namespace halo::cuda::conv {

template void launch_dense_weight<float, 16, true>(const DenseWeightPlan&, const void*, const void*, double*,
                                                   cudaStream_t);
template void launch_dense_weight<float, 32, true>(const DenseWeightPlan&, const void*, const void*, double*,
                                                   cudaStream_t);
template void launch_dense_weight<float, 48, true>(const DenseWeightPlan&, const void*, const void*, double*,
                                                   cudaStream_t);

}  // namespace halo::cuda::conv
