// The kernels of depthwise_rows.cu for half types.
#include "../launch.h"
#include "depthwise_geometry.h"
#include "depthwise_rows_half.cuh"

namespace halo::cuda::conv::depthwise {

template <class T>
void launch_half_rows(const RowsParams& params, dim3 blocks, cudaStream_t stream) {
  with_march(params.march, [&]<int March>(std::integral_constant<int, March>) {
    launch("conv depthwise rows", depthwise_rows_half<T, March>, blocks,
           dim3(static_cast<unsigned>(params.users + 1) * 32), static_cast<std::size_t>(params.shared_bytes), stream,
           params);
  });
}

template void launch_half_rows<BFloat16>(const RowsParams&, dim3, cudaStream_t);
template void launch_half_rows<Float16>(const RowsParams&, dim3, cudaStream_t);

}  // namespace halo::cuda::conv::depthwise
