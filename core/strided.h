// Walking several tensors of one shape together, whatever their strides.
#pragma once

#include <halo/core/parallel.h>
#include <halo/core/shape.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace halo {

/// The loop nest over N operands of one shape: axes of extent 1 are dropped and axes that are dense in every operand
/// are merged, so that a set of dense operands becomes a single axis. Strides are in elements.
template <std::size_t N>
struct StridedLoop {
  Shape shape;                   ///< at least one axis
  std::array<Shape, N> strides;  ///< of each operand, by axis of `shape`

  StridedLoop(const Shape& full, const std::array<Shape, N>& full_strides) {
    for (int i = 0; i < full.rank(); ++i) {
      if (full[i] == 1) continue;
      bool merges = !shape.empty();
      for (std::size_t k = 0; k < N && merges; ++k) merges = strides[k].back() == full[i] * full_strides[k][i];
      if (merges) {
        const int last = shape.rank() - 1;
        shape[last] *= full[i];
        for (std::size_t k = 0; k < N; ++k) strides[k][last] = full_strides[k][i];
      } else {
        shape.push_back(full[i]);
        for (std::size_t k = 0; k < N; ++k) strides[k].push_back(full_strides[k][i]);
      }
    }
    if (shape.empty()) {
      shape.push_back(1);
      for (Shape& s : strides) s.push_back(1);
    }
  }

  int64_t numel() const { return shape.numel(); }

  /// Calls `run(offsets, steps, count)` for pieces of the last axis: operand k's elements are at offsets[k] +
  /// i*steps[k], i < count. Pieces run on several threads; which elements form a piece does not depend on how many.
  template <class F>
  void for_each_run(F&& run) const {
    const int last = shape.rank() - 1;
    const int64_t length = shape[last], rows = length == 0 ? 0 : numel() / length;
    std::array<int64_t, N> steps;
    for (std::size_t k = 0; k < N; ++k) steps[k] = strides[k][last];
    constexpr int64_t kPiece = 16384;
    const int64_t pieces = (length + kPiece - 1) / kPiece;
    const int64_t grain = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, std::min(length, kPiece)));
    parallel_for(rows * pieces, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t start = (i % pieces) * kPiece;
        std::array<int64_t, N> offsets;
        for (std::size_t k = 0; k < N; ++k) offsets[k] = start * steps[k];
        int64_t row = i / pieces;
        for (int axis = last - 1; axis >= 0; --axis) {
          const int64_t index = row % shape[axis];
          row /= shape[axis];
          for (std::size_t k = 0; k < N; ++k) offsets[k] += index * strides[k][axis];
        }
        run(offsets, steps, std::min(kPiece, length - start));
      }
    });
  }
};

}  // namespace halo
