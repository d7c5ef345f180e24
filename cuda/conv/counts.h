// Numbers as plans reckon with them.
#pragma once

#include <cstdint>

namespace halo::cuda::conv {

inline int to_int(int64_t value) { return static_cast<int>(value); }
inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace halo::cuda::conv
