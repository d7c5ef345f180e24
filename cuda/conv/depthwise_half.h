// Depthwise convolution of half types on the tensor cores: what depthwise_half.cu hands to the kernels of
// depthwise_half_march.cuh and depthwise_half_weight.cuh, which are instantiated in depthwise_half_<type>.cu.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include "depthwise_geometry.h"

namespace halo::cuda::conv::depthwise {

inline constexpr int kMostBandWidth = 8;  ///< taps of a row

/// Forward and backward_input.
template <class T>
struct BandParams {
  const T* source = nullptr;
  const T* weight = nullptr;  ///< [channels, taps]
  const T* bias = nullptr;    ///< [channels], or null
  T* result = nullptr;
  bool flip = false;  ///< backward_input: taps in reverse order
  int width = 1;      ///< taps of a row
  Activation activation;
  FastDivide channels;    ///< of the result
  FastDivide multiplier;  ///< result channels a source channel feeds
  BandGeometry geometry;
};

template <class T>
void launch_bands(int march, const BandParams<T>& params, cudaStream_t stream);

template <class T>
struct HalfWeightParams {
  const T* x = nullptr;
  const T* y = nullptr;        ///< upstream gradient
  double* partials = nullptr;  ///< [channels * taps, splits]
  int64_t channels = 1;        ///< of y
  int multiplier = 1;          ///< channels of y that one channel of x feeds
  int width = 1;               ///< taps of a row
  HalfWeightGeometry geometry;
};

template <class T>
void launch_half_weight(const HalfWeightParams<T>& params, cudaStream_t stream);

}  // namespace halo::cuda::conv::depthwise
