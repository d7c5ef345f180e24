// The portable engine's kernels, TF32: weight gradient.
#include "portable_launch.cuh"
#include "portable_weight.cuh"

namespace halo::cuda::conv {

template <>
void portable_multiply_weight<1>(int shape, const PortableWeightParams& params, dim3 grid, cudaStream_t stream) {
  with_portable_tile<1>(shape, [&]<class Tile> {
    launch("conv portable weight", portable_weight_kernel<Tile>, grid, dim3(kPortableThreads),
           sizeof(PortableWeightShared<Tile>), stream, params);
  });
}

}  // namespace halo::cuda::conv
