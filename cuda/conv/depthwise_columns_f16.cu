#include "depthwise_columns.cuh"

namespace halo::cuda::conv::depthwise {

template void launch_columns(const ColumnShape&, const ColumnParams<Float16>&, cudaStream_t);
template void launch_columns_input(const ColumnShape&, const ColumnParams<Float16>&, cudaStream_t);
template void launch_columns_weight(const ColumnShape&, const ColumnWeightParams<Float16>&, cudaStream_t);

}  // namespace halo::cuda::conv::depthwise
