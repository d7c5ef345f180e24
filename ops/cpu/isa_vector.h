// What every file that is built once for each instruction set begins with: HALO_ISA names the set and the namespace.
#pragma once

#include <cstdint>
#include <cstring>

#include "isa.h"

namespace halo::cpu::HALO_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
template <class T>
using Vector [[gnu::vector_size(kVectorBytes)]] = T;

template <class T>
Vector<T> load(const T* from) {
  Vector<T> v;
  std::memcpy(&v, from, kVectorBytes);
  return v;
}
template <class T, class V>
void store(T* to, const V& v) {
  std::memcpy(to, &v, kVectorBytes);
}
/// `value` in every lane. Minus zero changes nothing, not even -0.
template <class T>
Vector<T> broadcast(T value) {
  return value - Vector<T>{};
}

/// Of one lane, and of a vector's.
extern const FftKernels fft_one, fft;

extern const GeluKernels gelu, gelu_tanh;

}  // namespace halo::cpu::HALO_ISA
