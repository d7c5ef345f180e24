// Drawing classes by their weights.
#pragma once

#include <halo/core/generator.h>

namespace halo {

/// `samples` class numbers a row, each class as likely as its weight among the row's: weights [classes] or
/// [rows, classes] (0 or more, finite, not all 0), result int64 [samples] or [rows, samples] on their device. Without
/// replacement no class comes twice. Drawn on the CPU, so that one seed gives one answer on every device.
Tensor multinomial(const Tensor& weights, int64_t samples, bool replacement = false,
                   Generator& generator = default_generator());

}  // namespace halo
