// The dense engine's kernels for bfloat16 with wide column tiles.
#include "launch.cuh"

namespace halo::cuda::conv {

template void multiply_dense<BFloat16, 1, DenseShapes::Wide>(const DensePlan&, const DenseParams&,
                                                             const PlainSumOf<BFloat16>&, int, const CUtensorMap&, bool,
                                                             cudaStream_t);

}  // namespace halo::cuda::conv
