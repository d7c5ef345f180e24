// The portable engine's kernels, float32-accurate: forward and backward_input.
#include "portable_kernel.cuh"
#include "portable_launch.cuh"

namespace halo::cuda::conv {

template <>
void portable_multiply<3>(int shape, const PortableParams& params, dim3 grid, int most_taps, cudaStream_t stream) {
  with_portable_tile<3>(shape, [&]<class Tile> {
    const std::size_t bytes = sizeof(PortableShared<Tile>) + static_cast<std::size_t>(most_taps) * sizeof(PortableTap);
    launch("conv portable", portable_kernel<Tile>, grid, dim3(kPortableThreads), bytes, stream, params);
  });
}

}  // namespace halo::cuda::conv
