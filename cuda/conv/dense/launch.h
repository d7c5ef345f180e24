// The dense engine's launches.
#pragma once

#include "../plain_sum.cuh"
#include "plan.h"
#include <cuda.h>

namespace halo::cuda::conv {

/// Lays weights out as DenseParams::weights, in `plan.weight_bytes` bytes.
template <class T>
void prepare_dense(const DensePlan& plan, const T* weights, bool accurate, float* prepared, cudaStream_t stream);

/// Launches the compiled shape `plan.variant`, one of `Shapes`. `source_map` is read where the plan is boxed. `early`:
/// the kernel before it on the stream is prepare_dense's, whose end it need not wait for to start.
template <class T, int Products, DenseShapes Shapes>
void multiply_dense(const DensePlan& plan, const DenseParams& params, const PlainSumOf<T>& plain, int blocks,
                    const CUtensorMap& source_map, bool early, cudaStream_t stream);

/// The pass that `plan` was made for.
void run_dense(const DensePlan& plan, const ConvConfig& config, const Operands& operands, cudaStream_t stream);

/// target = activation(sum of the splits' partial results, in order, + bias).
void reduce_dense(const DensePlan& plan, const float* partial, const float* bias, const Activation& activation,
                  const PlainSum& plain, float* target, cudaStream_t stream);

}  // namespace halo::cuda::conv
