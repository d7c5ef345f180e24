// Elements read or written together.
#pragma once

#include <cstdint>

namespace halo::cuda {

inline constexpr int kPackSize = 4;

/// N elements: one access where they are up to 16 bytes.
template <class T, int N = kPackSize>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T at[N];
};

/// Elements in 16 bytes.
template <class T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

template <class T, int N = kPackSize>
bool is_aligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(Pack<T, N>) == 0;
}

}  // namespace halo::cuda
