// How long a weight stays as it is.
#pragma once

#include <cstdint>

namespace halo {

/// Whether a weight is used again before it changes: then what a kernel makes of it first is worth keeping.
enum class WeightUse : uint8_t { Once, Again };

}  // namespace halo
