// Arithmetic that the problem structs share: per-axis option lists, and sizes that saturate or fail instead of
// wrapping. Not installed.
#pragma once

#include <halo/core/error.h>
#include <halo/core/shape.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

namespace halo::extents {

using Extents = std::array<int64_t, 3>;
inline constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

inline std::string show(std::span<const int64_t> values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

/// The product. @throws ArgumentError naming `what` where it passes 2^63 - 1.
inline int64_t product(const char* op, const char* what, std::span<const int64_t> factors) {
  if (std::find(factors.begin(), factors.end(), 0) != factors.end()) return 0;
  int64_t result = 1;
  for (int64_t f : factors) {
    if (f > kLargest / result) fail(op, ": ", what, " ", show(factors), " has more than 2^63 elements");
    result *= f;
  }
  return result;
}

/// `a * b + c` with a, b, c >= 0, saturating: sizes far beyond any tensor stay comparable instead of wrapping.
inline int64_t saturating_madd(int64_t a, int64_t b, int64_t c) {
  if (a != 0 && b > (kLargest - c) / a) return kLargest;
  return a * b + c;
}

/// Extent of a dilated kernel, d (k - 1) + 1, saturating.
inline int64_t effective_kernel(int64_t kernel, int64_t dilation) { return saturating_madd(dilation, kernel - 1, 1); }

/// What the caller sees (rank, one value an axis) turned into three extents with leading `fill`s.
struct Axes {
  const char* op;
  int rank;

  Extents expand(const char* argument, const IntList& given, int64_t fill, int64_t smallest) const {
    Extents result{fill, fill, fill};
    if (!given.empty() && given.size() != 1 && given.size() != static_cast<std::size_t>(rank)) {
      fail(op, ": ", argument, " expects 1 or ", rank, " values, got ", show(given));
    }
    for (int axis = 0; axis < rank; ++axis) {
      const int64_t value = given.empty() ? fill : given[given.size() == 1 ? 0 : static_cast<std::size_t>(axis)];
      if (value < smallest) {
        fail(op, ": ", argument, " expects values of at least ", smallest, ", got ", show(given));
      }
      result[static_cast<std::size_t>(3 - rank + axis)] = value;
    }
    return result;
  }

  Extents spatial(const Shape& shape) const {
    Extents result{1, 1, 1};
    std::copy(shape.begin() + 2, shape.end(), result.begin() + (3 - rank));
    return result;
  }

  /// The number by which the caller knows extent `axis`.
  int axis_seen(std::size_t axis) const { return static_cast<int>(axis) - (3 - rank); }
};

/// [first, second, spatial...] with the last `rank` of three extents.
inline Shape with_channels(int64_t first, int64_t second, const Extents& spatial, int rank) {
  Shape shape{first, second};
  for (int i = 3 - rank; i < 3; ++i) shape.push_back(spatial[static_cast<std::size_t>(i)]);
  return shape;
}

}  // namespace halo::extents
