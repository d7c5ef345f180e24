// What the host decides about vector.cuh's access to rows.
#pragma once

#include <cstdint>

namespace halo::cuda::device {

inline constexpr int kVectorBytes = 16;

/// Elements of T in one 16-byte vector.
template <class T>
inline constexpr int kVectorWidth = kVectorBytes / static_cast<int>(sizeof(T));

/// First and one-past-last element that may be read.
template <class T>
struct Extent {
  const T* begin;
  const T* end;
};

/// What is known of all rows of an operand that are read through windows.
struct RowAlignment {
  int shift_bits = kVectorBytes - 1;  ///< bits that the byte offset of a window from a vector boundary may have
  bool whole_vectors = false;         ///< no vector holds elements of two rows

  RowAlignment() = default;
  /// Rows of `width` elements one behind the other from `address` on; windows start `lead` elements before a vector.
  template <class T>
  RowAlignment(const T* address, int64_t width, int64_t lead) {
    const auto size = static_cast<int64_t>(sizeof(T));
    const auto row_bits = static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)) | width * size;
    shift_bits = static_cast<int>((row_bits | lead * size) & (kVectorBytes - 1));
    // An offset that is a sum of multiples of 4, say, may have any of the bits from 4 up.
    for (int bit = 1; bit < kVectorBytes; bit *= 2) {
      if ((shift_bits & (bit - 1)) != 0) shift_bits |= bit;
    }
    whole_vectors = (row_bits & (kVectorBytes - 1)) == 0;
  }
};

/// The widest store that the start and length of every row of the result allow.
enum class StoreWidth : uint8_t { Element, Word, Vector };

/// The store width for rows of `width` elements one behind the other from `address` on.
template <class T>
StoreWidth store_width(const T* address, int64_t width) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | static_cast<uintptr_t>(width) * sizeof(T);
  return bits % kVectorBytes == 0 ? StoreWidth::Vector : bits % 4 == 0 ? StoreWidth::Word : StoreWidth::Element;
}

}  // namespace halo::cuda::device
