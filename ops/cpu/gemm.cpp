#include "gemm.h"

#include "tiles.h"

namespace halo::cpu {

void multiply_tile(int64_t rows, int64_t columns, int64_t depth, Matrix<const float> a, Matrix<const float> b,
                   float* result, int64_t pitch, GemmScratch& scratch) {
  constexpr int64_t kDepth = 256;  // a panel of this depth stays in the first-level cache
  const Panels panels(columns);
  const int64_t deepest = std::min(kDepth, depth);
  const bool in_place = a.column_step == 1;  // else the left operand is copied, depth outermost
  scratch.rows.resize(static_cast<std::size_t>(rows));
  scratch.steps.resize(static_cast<std::size_t>(deepest));
  for (int64_t i = 0; i < rows; ++i) scratch.rows[static_cast<std::size_t>(i)] = i * (in_place ? a.row_step : 1);
  for (int64_t k = 0; k < deepest; ++k) scratch.steps[static_cast<std::size_t>(k)] = k * (in_place ? 1 : rows);
  scratch.right.resize(static_cast<std::size_t>(deepest * panels.padded));
  if (!in_place) scratch.left.resize(static_cast<std::size_t>(deepest * rows));
  for (int64_t i = 0; depth == 0 && i < rows; ++i) std::fill_n(result + i * pitch, panels.padded, 0.0F);
  for (int64_t k0 = 0; k0 < depth; k0 += kDepth) {
    const int64_t count = std::min(kDepth, depth - k0);
    const float* left = a.data + k0;
    if (!in_place) {
      for (int64_t k = 0; k < count; ++k) {
        const float* from = a.data + (k0 + k) * a.column_step;
        float* to = scratch.left.data() + k * rows;
        for (int64_t i = 0; i < rows; ++i) to[i] = from[i * a.row_step];
      }
      left = scratch.left.data();
    }
    panels.for_each(0, panels.padded, [&](int64_t first, int64_t width) {
      float* const panel = scratch.right.data() + first * count;
      const Matrix<const float> from = b.from(k0, first);
      pack_panel(from.data, from.row_step, from.column_step, count, std::min(width, columns - first), width, panel);
      multiply_panel(rows, count, left, scratch.rows.data(), scratch.steps.data(), panel, width, result + first, pitch,
                     k0 > 0);
    });
  }
}

}  // namespace halo::cpu
