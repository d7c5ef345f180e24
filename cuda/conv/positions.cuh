// Positions of the source as columns of a warpgroup's products: in shared memory 16 bytes of a position's channels,
// then those of the next one, so that any position may be the first, and a tap is the same operand further on.
#pragma once

#include "../device/shared_words.cuh"
#include "../device/wgmma.cuh"
#include "../device/wgmma_half.cuh"
#include "plain_sum.cuh"
#include "small_groups/tile.cuh"

namespace halo::cuda::conv {

/// `second`: bytes to the second half of a product's depth.
__device__ __forceinline__ uint64_t positions_descriptor(uint32_t address, uint32_t second) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{second >> 4} << 16 | uint64_t{128 >> 4} << 32;
}

/// Stores 16 bytes of a position, words word(0) to word(3) as loaded: float32 rounded to TF32 or, Split, in two parts,
/// the second `part` bytes further.
template <class T, bool Split, class Word>
__device__ __forceinline__ void store_position(uint32_t to, uint32_t part, const Word& word) {
  uint32_t four[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    four[i] = word(i);
    if constexpr (Split) {
      const device::Tf32Pair two = device::split_tf32_unguarded(__uint_as_float(four[i]));
      four[i] = two.high;
      low[i] = two.low;
    } else if constexpr (sizeof(T) == 4) {
      four[i] = device::round_tf32_by_cut(__uint_as_float(four[i]));
    }
  }
  device::store_shared(to, four[0], four[1], four[2], four[3]);
  if constexpr (Split) device::store_shared(to + part, low[0], low[1], low[2], low[3]);
}

}  // namespace halo::cuda::conv
