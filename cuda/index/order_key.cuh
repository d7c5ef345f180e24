// Numbers that order as elements do.
#pragma once

#include <cstdint>
#include <type_traits>

namespace halo::cuda {

/// An unsigned number of T's size that orders as T does: NaNs equal and last, -0 and +0 equal. Inverted for descending
/// order, so that among equals the lower index still comes first.
template <class T>
__device__ uint64_t order_key(T value, bool descending) {
  constexpr int kBits = 8 * sizeof(T);
  constexpr uint64_t kAll = kBits == 64 ? ~uint64_t{0} : (uint64_t{1} << kBits) - 1, kTop = uint64_t{1} << (kBits - 1);
  uint64_t key;
  if constexpr (std::is_floating_point_v<T>) {
    if (value == T(0)) value = T(0);  // -0
    if constexpr (sizeof(T) == 4) {
      key = static_cast<uint32_t>(__float_as_uint(value));
    } else {
      key = static_cast<uint64_t>(__double_as_longlong(value));
    }
    if (value != value) {
      key = kAll;
    } else {
      key = (key & kTop) != 0 ? ~key & kAll : key | kTop;
    }
  } else {
    key = static_cast<uint64_t>(value) & kAll;
    if constexpr (std::is_signed_v<T>) key ^= kTop;
  }
  return descending ? ~key & kAll : key;
}

}  // namespace halo::cuda
