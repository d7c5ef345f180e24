// What depthwise.cu hands to the kernels of march.cuh and weight.cuh.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include "geometry.h"

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

  SumParams(const ConvProblem& problem, const ConvConfig& config, const Operands& operands, const Geometry& g)
      : flip(config.pass == ConvPass::BackwardInput),
        channels(static_cast<uint32_t>(problem.out_channels)),
        multiplier(static_cast<uint32_t>(problem.out_channels_per_group())),
        geometry(g) {
    source = static_cast<const T*>(flip ? operands.y : operands.x);
    weight = static_cast<const T*>(operands.w);
    bias = flip ? nullptr : static_cast<const T*>(operands.bias);
    result = static_cast<T*>(flip ? operands.x : operands.y);
    if (!flip) activation = config.activation;
  }
};

template <class T>
using MarchParams = SumParams<T, MarchGeometry>;

/// backward_weight.
template <class T, class Geometry>
struct WeightParams {
  const T* x = nullptr;
  const T* y = nullptr;        ///< upstream gradient
  double* partials = nullptr;  ///< [channels * taps, splits]
  int64_t channels = 1;        ///< of y
  int multiplier = 1;          ///< channels of y that one channel of x feeds
  int splits = 1;              ///< blocks a channel
  Geometry geometry;

  WeightParams(const ConvProblem& problem, const Operands& operands, const Geometry& g, int64_t splits)
      : x(static_cast<const T*>(operands.x)),
        y(static_cast<const T*>(operands.y)),
        partials(static_cast<double*>(operands.workspace)),
        channels(problem.out_channels),
        multiplier(static_cast<int>(problem.out_channels_per_group())),
        splits(static_cast<int>(splits)),
        geometry(g) {}
};

template <class T>
using MarchWeightParams = WeightParams<T, MarchGeometry>;

inline constexpr int kMostBandWidth = 8;  ///< taps of a row

/// Half types on the tensor cores.
template <class T>
using BandParams = SumParams<T, BandGeometry>;

template <class T>
using HalfWeightParams = WeightParams<T, HalfWeightGeometry>;

}  // namespace halo::cuda::conv::depthwise
