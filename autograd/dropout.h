// Differentiable dropout.
#pragma once

#include <halo/core/generator.h>

namespace halo {

/// While training, each element becomes 0 with probability p and is scaled by 1 / (1 - p) otherwise; else x itself. The
/// mask follows the generator's state and the element's position, the same on every device; it is not stored but made
/// again in backward. Dropped elements and their gradients are exactly 0. x of any shape and a floating dtype.
/// @throws ArgumentError for another dtype, or a p outside [0, 1].
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true, Generator& generator = default_generator());

}  // namespace halo
