// Convolution with the lanes of a vector along the positions: for few channels a group, depthwise among them.
#pragma once

#include "conv_correlation.h"

namespace halo::cpu {
void correlate_lines(const Correlation& q, const CorrelationData& data);

/// Gradient of the weight [out_channels, in_channels / groups, taps].
void weight_gradient_lines(const ConvProblem& p, const float* x, const float* g, float* w);

}  // namespace halo::cpu
