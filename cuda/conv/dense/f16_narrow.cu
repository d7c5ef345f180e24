// The dense engine's kernels for float16 with narrow column tiles.
#include "launch.cuh"

namespace halo::cuda::conv {

template void multiply_dense<Float16, 1, DenseShapes::Narrow>(const DensePlan&, const DenseParams&,
                                                              const PlainSumOf<Float16>&, int, const CUtensorMap&, bool,
                                                              cudaStream_t);

}  // namespace halo::cuda::conv
