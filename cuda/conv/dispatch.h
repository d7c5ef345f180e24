// Choosing a convolution kernel: of the algorithms that support the problem, the one with the least predicted time.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <span>
#include <string>
#include <string_view>

namespace halo::cuda::conv {

/// All algorithms, the fallback last.
std::span<const Algorithm* const> algorithms();

/// @throws ArgumentError listing the names if there is no such algorithm.
const Algorithm& find_algorithm(std::string_view name);

/// The cheapest algorithm that supports this; kDirect supports everything, so there always is one.
/// The choice depends on the arguments and the GPU model alone.
const Algorithm& select_algorithm(const ConvProblem& problem, const ConvConfig& config);

/// One line an algorithm: name, whether it supports the problem, predicted time and workspace; the choice is marked.
std::string explain(const ConvProblem& problem, const ConvConfig& config);

}  // namespace halo::cuda::conv
