#include "depthwise_launch.cuh"

namespace halo::cuda::conv::depthwise {

template void launch_march(const MarchShape&, const MarchParams<float>&, cudaStream_t);
template void launch_march_weight(const MarchShape&, const MarchWeightParams<float>&, cudaStream_t);

bool taps_are_compiled(const MarchShape& shape) {
  return with_taps(shape, CompiledTaps{}, [](auto) {});
}

}  // namespace halo::cuda::conv::depthwise
