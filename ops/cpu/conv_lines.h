// Convolution with the lanes of a vector along the positions: for few channels a group, depthwise among them.
#pragma once

#include "conv_correlation.h"

namespace halo::cpu {

template <class T>
void correlate_lines(const Correlation& q, const CorrelationData<T>& data);

/// Gradient of the weight [out_channels, in_channels / groups, taps].
template <class T>
void weight_gradient_lines(const ConvProblem& p, const T* x, const T* g, T* w);

}  // namespace halo::cpu
