// The norms that march through plane_ring.h, which only Hopper has.
#pragma once

#include "gradient_sums.cuh"
#include "plane_ring.h"
#include <cuda_runtime.h>

namespace halo::cuda {

/// Dense [rows, length]; null operands are absent (1 and 0).
template <class T>
struct RingForward {
  const T *x, *weight, *bias;
  T* y;
  device::Accumulator<T>*mean, *rstd;
  double eps;
  static constexpr int kOperands = 1, kSums = 2;
};
template <class T>
void ring_forward(const char* name, const RingPlan& plan, const RingForward<T>& args, cudaStream_t stream);

template <class T>
struct RingBackward {
  const T *x, *g, *weight;
  const device::Accumulator<T>*mean, *rstd;
  T* dx;                    ///< null: not wanted
  GradientSums* sums;       ///< [planes][plan.each], for the gradients of weight and bias
  Slopes<Wide<T>>* slopes;  ///< [rows]
  static constexpr int kOperands = 2, kSums = 3;
};
template <class T>
void ring_backward(const char* name, const RingPlan& plan, const RingBackward<T>& args, cudaStream_t stream);

}  // namespace halo::cuda
