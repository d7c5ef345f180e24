// Choosing a convolution kernel: the one that was measured to be fastest, else, of the algorithms that support the
// problem, the one with the least predicted time.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choices.h"

namespace halo::cuda::conv {

/// All algorithms, the fallback last.
std::span<const Algorithm* const> algorithms();

/// @throws ArgumentError listing the names if there is no such algorithm.
const Algorithm& find_algorithm(std::string_view name);

/// The cheapest algorithm that supports this; kDirect supports everything, so there always is one.
/// The choice depends on the arguments, the GPU model and the measured choices in force alone.
const Algorithm& select_algorithm(const ConvProblem& problem, const ConvConfig& config);

/// The same by prediction alone, for kernels that run others; such convolutions are nobody's request.
const Algorithm& predicted_algorithm(const ConvProblem& problem, const ConvConfig& config);

/// Measured choices of a device, in place of those it had. @throws ArgumentError for a kernel that does not exist.
void use_choices(int device, const std::vector<Choice>& choices);
void forget_choices();

/// The different convolutions that `body` asks `device` for, from whichever thread.
std::vector<ChoiceKey> convolutions_of(int device, const std::function<void()>& body);

/// One line an algorithm: name, whether it supports the problem, predicted time and workspace; the choice is marked,
/// and whether it was measured or predicted.
std::string explain(const ConvProblem& problem, const ConvConfig& config);

}  // namespace halo::cuda::conv
