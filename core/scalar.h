// A number passed by value to a tensor operation: an integer kept whole, or a double.
#pragma once

#include <concepts>
#include <cstdint>

namespace halo {

struct Scalar {
  bool integral = false;
  int64_t integer = 0;
  double real = 0;

  template <std::integral T>
  Scalar(T value) : integral(true), integer(static_cast<int64_t>(value)), real(static_cast<double>(value)) {}  // NOLINT
  template <std::floating_point T>
  Scalar(T value) : integer(0), real(static_cast<double>(value)) {}  // NOLINT(google-explicit-constructor)

  /// The value as an element type; integers keep all 64 bits.
  template <class T>
  T as() const {
    if constexpr (std::integral<T>) {
      return integral ? static_cast<T>(integer) : static_cast<T>(real);
    } else if constexpr (std::floating_point<T>) {
      return static_cast<T>(real);
    } else {
      return T(static_cast<float>(real));
    }
  }
};

}  // namespace halo
