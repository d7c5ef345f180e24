#include "depthwise_columns.cuh"

namespace halo::cuda::conv::depthwise {

template void launch_columns(const ColumnShape&, const ColumnParams<BFloat16>&, cudaStream_t);
template void launch_columns_input(const ColumnShape&, const ColumnParams<BFloat16>&, cudaStream_t);
template void launch_columns_weight(const ColumnShape&, const ColumnWeightParams<BFloat16>&, cudaStream_t);

}  // namespace halo::cuda::conv::depthwise
