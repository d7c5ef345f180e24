// Stable sorting of 64-bit keys with 64-bit values, behind one file because the library it comes from compiles slowly.
#pragma once

#include <halo/core/tensor.h>

#include <cstdint>

namespace halo::cuda {

/// The pairs (keys[i], values[i]), i < n, by the lowest `bits` bits of the keys as unsigned numbers; equal keys keep
/// their order. Dense int64 tensors of n elements on one GPU; inputs are left as they are.
struct SortedPairs {
  Tensor keys, values;
};
SortedPairs radix_sort(const Tensor& keys, const Tensor& values, int bits);

/// Bits that numbers below `bound` need.
int bits_below(int64_t bound);

}  // namespace halo::cuda
