// The dense engine's float32-accurate kernels with wide column tiles.
#include "launch.cuh"

namespace halo::cuda::conv {

template void multiply_dense<float, 3, DenseShapes::Wide>(const DensePlan&, const DenseParams&, const PlainSum&, int,
                                                          const CUtensorMap&, bool, cudaStream_t);

}  // namespace halo::cuda::conv
