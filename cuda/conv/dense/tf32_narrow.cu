// The dense engine's TF32 kernels with narrow column tiles.
#include "launch.cuh"

namespace halo::cuda::conv {

template void multiply_dense<float, 1, DenseShapes::Narrow>(const DensePlan&, const DenseParams&, const PlainSum&, int,
                                                            const CUtensorMap&, bool, cudaStream_t);

}  // namespace halo::cuda::conv
