// The weight gradients of depthwise windows (windows_weight.cu): what windows.cu offers the dispatcher for that pass.
#pragma once

#include <halo/cuda/conv/algorithm.h>

namespace halo::cuda::conv::depthwise {

bool supports_windows_weight(const ConvProblem& problem, const ConvConfig& config);
std::size_t windows_weight_bytes(const ConvProblem& problem, const ConvConfig& config);
double predict_windows_weight(const ConvProblem& problem, const ConvConfig& config);
void run_windows_weight(const ConvProblem& problem, const ConvConfig& config, const Operands& operands,
                        cudaStream_t stream);

}  // namespace halo::cuda::conv::depthwise
