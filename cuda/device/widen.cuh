// Packs of storage types as packs of numbers to calculate with.
#pragma once

#include <cstdint>
#include <cstring>

#include "number.cuh"
#include "packs.cuh"

namespace halo::cuda::device {

/// A pack in the type of arithmetic, and back. Numbers of 16 bits go by words: one instruction a number where elements
/// of their own take two.
template <class T, int N>
__device__ __forceinline__ Pack<Accumulator<T>, N> widen(const Pack<T, N>& pack) {
  Pack<Accumulator<T>, N> wide;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    uint32_t words[N / 2];
    memcpy(words, pack.at, sizeof(words));
#pragma unroll
    for (int w = 0; w < N / 2; ++w) unpack_word<T>(words[w], wide.at + 2 * w);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) wide.at[k] = to_accumulator(pack.at[k]);
  }
  return wide;
}
template <class T, int N>
__device__ __forceinline__ Pack<T, N> narrow(const Pack<Accumulator<T>, N>& wide) {
  Pack<T, N> pack;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    uint32_t words[N / 2];
#pragma unroll
    for (int w = 0; w < N / 2; ++w) words[w] = pack_word<T>(wide.at + 2 * w);
    memcpy(pack.at, words, sizeof(words));
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) pack.at[k] = from_accumulator<T>(wide.at[k]);
  }
  return pack;
}

}  // namespace halo::cuda::device
