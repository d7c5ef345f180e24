// The compiled tile shapes of the dense weight gradient, and the door to them.
#pragma once

#include "plan.h"
#include <cuda.h>
#include <cuda_runtime.h>

namespace halo::cuda::conv {

/// What the copy engine needs to know of an operand.
struct TensorMap {
  CUtensorMap map;
  int shift;  ///< elements between the map's base, aligned to 16 bytes, and the tensor's first element
};

/// The map of a dense tensor at `data` as `matrix` describes it; `swizzle` as tensor_map has it.
TensorMap plane_matrix_map(const PlaneMatrix& matrix, const void* data, bool swizzle);

/// Sums of every split into `partial`. Instantiated for the columns of plan.cpp in *.cu.
template <class T, int Columns, bool Split>
void launch_dense_weight(const DenseWeightPlan& plan, const void* gathered, const void* streamed, double* partial,
                         cudaStream_t stream);

}  // namespace halo::cuda::conv
