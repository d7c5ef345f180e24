// Products of panels: what lies between the kernels of isa.h and the loops of convolution and matrix products.
#pragma once

#include <algorithm>
#include <cstdint>

#include "isa.h"

namespace halo::cpu {

/// The columns of a matrix in panels as wide as a tile, the last perhaps half as wide. A panel is dense, row by row;
/// the panel from column `first` on begins at depth * first.
struct Panels {
  explicit Panels(int64_t columns)
      : lanes(kernels().lanes), padded((columns + lanes - 1) / lanes * lanes), widest(Kernels::kTileVectors * lanes) {}
  int64_t lanes, padded, widest;
  int64_t width(int64_t first) const { return std::min(widest, padded - first); }
  int64_t count() const { return (padded + widest - 1) / widest; }
  /// Calls f(first column, width) for the panels in [begin, end).
  template <class F>
  void for_each(int64_t begin, int64_t end, F&& f) const {
    for (int64_t first = begin; first < end; first += widest) f(first, width(first));
  }
};

/// Row i of a panel, column j, is from[i * row_step + j * column_step]; columns from `count` on are 0.
inline void pack_panel(const float* from, int64_t row_step, int64_t column_step, int64_t rows, int64_t count,
                       int64_t width, float* panel) {
  constexpr int64_t kBlock = 16;  // rows whose lines stay in the cache while all columns are written
  for (int64_t i0 = 0; i0 < rows; i0 += kBlock) {
    const int64_t i1 = std::min(rows, i0 + kBlock);
    if (column_step == 1) {
      for (int64_t i = i0; i < i1; ++i) std::copy_n(from + i * row_step, count, panel + i * width);
    } else {
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t i = i0; i < i1; ++i) panel[i * width + j] = from[i * row_step + j * column_step];
      }
    }
    if (count == width) continue;
    for (int64_t i = i0; i < i1; ++i) std::fill(panel + i * width + count, panel + (i + 1) * width, 0.0F);
  }
}

/// c[rows, width] (+)= a b for one panel of b (see Tile).
inline void multiply_panel(int64_t rows, int64_t depth, const float* a, const int64_t* row_offsets,
                           const int64_t* depth_offsets, const float* panel, int64_t width, float* c, int64_t ldc,
                           bool accumulate) {
  const Kernels& isa = kernels();
  const int64_t vectors = width / isa.lanes;
  for (int64_t i = 0; i < rows; i += isa.tile_rows) {
    const int64_t count = std::min<int64_t>(isa.tile_rows, rows - i);
    isa.tile[count - 1][vectors - 1](depth, a, row_offsets + i, depth_offsets, panel, c + i * ldc, ldc, accumulate);
  }
}

}  // namespace halo::cpu
