// The compiled tile shapes of the dense weight gradient, and the door to them.
#pragma once

#include "dense_weight_plan.h"
#include <cuda_runtime.h>

namespace halo::cuda::conv {

/// Sums of every split into `partial`. Instantiated for the columns of dense_weight_plan.cpp in dense_weight_*.cu.
template <int Columns, bool Split>
void launch_dense_weight(const DenseWeightPlan& plan, const float* gathered, const float* streamed, double* partial,
                         cudaStream_t stream);

}  // namespace halo::cuda::conv
