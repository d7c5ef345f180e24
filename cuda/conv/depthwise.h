// What depthwise.cu hands to the kernels of depthwise_march.cuh and depthwise_weight.cuh. The launchers are
// instantiated a storage type a file, in depthwise_<type>.cu.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include "depthwise_geometry.h"

namespace halo::cuda::conv::depthwise {

/// Forward and backward_input.
template <class T, class Geometry>
struct SumParams {
  const T* source = nullptr;
  const T* weight = nullptr;  ///< [channels, taps]
  const T* bias = nullptr;    ///< [channels], or null
  T* result = nullptr;
  bool flip = false;  ///< backward_input: taps in reverse order
  Activation activation;
  FastDivide channels;    ///< of the result
  FastDivide multiplier;  ///< result channels a source channel feeds
  Geometry geometry;
};

template <class T>
using MarchParams = SumParams<T, MarchGeometry>;

template <class T>
struct MarchWeightParams {
  const T* x = nullptr;
  const T* y = nullptr;        ///< upstream gradient
  double* partials = nullptr;  ///< [channels * taps, splits]
  int64_t channels = 1;        ///< of y
  int multiplier = 1;          ///< channels of y that one channel of x feeds
  int splits = 1;              ///< blocks a channel
  MarchGeometry geometry;
};

/// What forward and backward_input kernels are told of operands and channels, whatever their geometry.
template <class T, class Params>
void set_operands(Params& params, const ConvProblem& problem, const ConvConfig& config, const Operands& operands) {
  const bool flipped = config.pass == ConvPass::BackwardInput;
  params.source = static_cast<const T*>(flipped ? operands.y : operands.x);
  params.weight = static_cast<const T*>(operands.w);
  params.bias = flipped ? nullptr : static_cast<const T*>(operands.bias);
  params.result = static_cast<T*>(flipped ? operands.x : operands.y);
  params.flip = flipped;
  if (!flipped) params.activation = config.activation;
  params.channels = FastDivide(static_cast<uint32_t>(problem.out_channels));
  params.multiplier = FastDivide(static_cast<uint32_t>(problem.out_channels_per_group()));
}

/// Whether kernels for these taps exist.
bool taps_are_compiled(const MarchShape& shape);

template <class T>
void launch_march(const MarchShape& shape, const MarchParams<T>& params, cudaStream_t stream);
template <class T>
void launch_march_weight(const MarchShape& shape, const MarchWeightParams<T>& params, cudaStream_t stream);

}  // namespace halo::cuda::conv::depthwise
