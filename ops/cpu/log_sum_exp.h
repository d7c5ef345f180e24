// The shifted sum of exponentials that softmax and cross entropy share.
#pragma once

#include <halo/ops/binary_functors.h>

#include <array>
#include <cmath>

#include "columns.h"

namespace halo::cpu {

/// Of each line of a block: the largest element (NaN wins) and the sum of exp(x - largest).
template <class T>
struct ShiftedSum {
  std::array<T, ColumnBlock::kWidth> largest;
  std::array<double, ColumnBlock::kWidth> sum{};
};

/// Where `kept` is not null, exp(x - largest) is written there, as x lies.
template <class T>
ShiftedSum<T> shifted_sum(const ColumnBlock& b, const T* x, T* kept = nullptr) {
  ShiftedSum<T> result;
  result.largest.fill(-std::numeric_limits<T>::infinity());
  for (int64_t j = 0; j < b.length; ++j) {
    const T* row = x + b.first + j * b.stride;
    for (int64_t i = 0; i < b.width; ++i) {
      T& largest = result.largest[static_cast<std::size_t>(i)];
      largest = functor::Maximum{}(largest, row[i]);
    }
  }
  for (int64_t j = 0; j < b.length; ++j) {
    const int64_t row = b.first + j * b.stride;
    for (int64_t i = 0; i < b.width; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const T e = std::exp(x[row + i] - result.largest[at]);
      if (kept != nullptr) kept[row + i] = e;
      result.sum[at] += static_cast<double>(e);
    }
  }
  return result;
}

}  // namespace halo::cpu
