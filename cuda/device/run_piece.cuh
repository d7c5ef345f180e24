// Runs of memory as packs of 16 bytes, wherever they begin.
#pragma once

#include <cstring>

#include "packs.cuh"

namespace halo::cuda {

/// Elements begin ... end - 1 of an operand: whole packs, which lie at multiples of their size from `lead` elements
/// before its first, and up to a pack less one at either edge.
struct RunPiece {
  int64_t begin, packs_at, tail_at;  ///< elements
  int packs, head, edges;            ///< edges: elements outside whole packs, `head` of them before those

  template <int kSize>
  __device__ static RunPiece of(int64_t begin, int64_t end, int lead = 0) {
    const int64_t at = min(((begin + lead + kSize - 1) & ~int64_t{kSize - 1}) - lead, end);
    const int packs = static_cast<int>(static_cast<unsigned>(end - at) / kSize), head = static_cast<int>(at - begin);
    const int64_t tail = at + int64_t{packs} * kSize;
    return {begin, at, tail, packs, head, head + static_cast<int>(end - tail)};
  }
  __device__ int64_t edge(int i) const { return i < head ? begin + i : tail_at + (i - head); }
};

#ifdef __CUDACC__
/// A pack that begins anywhere, from the one or two granules of 16 bytes that it lies in.
template <class T>
__device__ __forceinline__ Pack<T, kWide<T>> load_between_granules(const T* at) {
  const auto lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) % 16);
  const auto* const granules = reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(at) - lead);
  const uint4 low = granules[0], high = granules[lead == 0 ? 0 : 1];
  uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int k = 0; k < 6; ++k) words[k] = lead & 8 ? words[k + 2] : words[k];
  if constexpr (sizeof(T) < 8) {
#pragma unroll
    for (int k = 0; k < 5; ++k) words[k] = lead & 4 ? words[k + 1] : words[k];
  }
  if constexpr (sizeof(T) < 4) {
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = __funnelshift_r(words[k], words[k + 1], lead % 4 * 8);
  }
  Pack<T, kWide<T>> pack;
  memcpy(pack.at, words, sizeof(pack));
  return pack;
}
#endif

}  // namespace halo::cuda
