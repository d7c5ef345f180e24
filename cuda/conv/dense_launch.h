// The dense engine's launches.
#pragma once

#include "dense_plan.h"
#include "plain_sum.cuh"

namespace halo::cuda::conv {

/// Lays weights and bias out as `params.weights` and `params.columns`.
void prepare_dense(const DensePlan& plan, const DenseParams& params, const float* weights, const float* bias,
                   bool accurate, cudaStream_t stream);

/// Launches the compiled shape `plan.variant`.
template <int Products>
void multiply_dense(const DensePlan& plan, const DenseParams& params, const PlainSum& plain, int blocks,
                    cudaStream_t stream);

/// target = activation(sum of the splits' partial results, in order, + bias).
void reduce_dense(const DensePlan& plan, const float* partial, const float* bias, const Activation& activation,
                  const PlainSum& plain, float* target, cudaStream_t stream);

}  // namespace halo::cuda::conv
