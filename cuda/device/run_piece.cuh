// Runs of memory as packs of 16 bytes, wherever they begin.
#pragma once

#include "packs.cuh"

namespace halo::cuda {

/// Elements begin ... end - 1 of an operand: whole packs, which lie at multiples of their size from its first element,
/// and up to a pack less one at either edge.
struct RunPiece {
  int64_t begin, packs_at, tail_at;  ///< elements
  int packs, head, edges;            ///< edges: elements outside whole packs, `head` of them before those

  template <int kSize>
  __device__ static RunPiece of(int64_t begin, int64_t end) {
    const int64_t at = min((begin + kSize - 1) & ~int64_t{kSize - 1}, end);
    const int packs = static_cast<int>(static_cast<unsigned>(end - at) / kSize), head = static_cast<int>(at - begin);
    const int64_t tail = at + int64_t{packs} * kSize;
    return {begin, at, tail, packs, head, head + static_cast<int>(end - tail)};
  }
  __device__ int64_t edge(int i) const { return i < head ? begin + i : tail_at + (i - head); }
};

}  // namespace halo::cuda
