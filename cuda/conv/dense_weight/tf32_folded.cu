// Tile shapes of the dense weight gradient, TF32, 144 and 192 columns: three folded taps of 48 or 64 channels.
#include "dense_weight.cuh"

namespace halo::cuda::conv {

template void launch_dense_weight<float, 144, false>(const DenseWeightPlan&, const void*, const void*, double*,
                                                     cudaStream_t);
template void launch_dense_weight<float, 192, false>(const DenseWeightPlan&, const void*, const void*, double*,
                                                     cudaStream_t);

}  // namespace halo::cuda::conv
