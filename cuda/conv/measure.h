// Timing every kernel that can do a convolution.
#pragma once

#include <halo/core/device.h>

#include <span>
#include <string>

#include "choices.h"

namespace halo::cuda::conv {

/// This device, driver and build.
MeasuredOn measured_here(Device device);

/// The fastest kernel for each key, on random operands.
std::vector<Choice> measure_choices(std::span<const ChoiceKey> keys, Device device);

/// Writes `choices`, measured on `device`, to `path`.
void write_choices(const std::string& path, const std::vector<Choice>& choices, Device device);

}  // namespace halo::cuda::conv
