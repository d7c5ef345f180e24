// Tile shapes of the dense weight gradient, TF32, 64 to 128 columns.
#include "dense_weight.cuh"

namespace halo::cuda::conv {

template void launch_dense_weight<64, false>(const DenseWeightPlan&, const float*, const float*, double*, cudaStream_t);
template void launch_dense_weight<96, false>(const DenseWeightPlan&, const float*, const float*, double*, cudaStream_t);
template void launch_dense_weight<128, false>(const DenseWeightPlan&, const float*, const float*, double*,
                                              cudaStream_t);

}  // namespace halo::cuda::conv
