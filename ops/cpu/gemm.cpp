#include "gemm.h"

#include "tiles.h"

namespace halo::cpu {

template <class T>
void multiply_tile(int64_t rows, int64_t columns, int64_t depth, Matrix<const T> a, Matrix<const T> b, T* result,
                   GemmScratch<T>& scratch) {
  constexpr int64_t kDepth = 256;  // a panel of this depth stays in the first-level cache
  const Panels<T> panels(columns);
  const int64_t deepest = std::min(kDepth, depth);
  const bool in_place = a.column_step == 1;  // else the left operand is copied, depth outermost
  scratch.rows.resize(static_cast<std::size_t>(rows));
  scratch.steps.resize(static_cast<std::size_t>(deepest));
  for (int64_t i = 0; i < rows; ++i) scratch.rows[static_cast<std::size_t>(i)] = i * (in_place ? a.row_step : 1);
  for (int64_t k = 0; k < deepest; ++k) scratch.steps[static_cast<std::size_t>(k)] = k * (in_place ? 1 : rows);
  scratch.right.resize(static_cast<std::size_t>(deepest * panels.padded));
  if (!in_place) scratch.left.resize(static_cast<std::size_t>(deepest * rows));
  if (depth == 0) std::fill_n(result, rows * panels.padded, T(0));
  for (int64_t k0 = 0; k0 < depth; k0 += kDepth) {
    const int64_t count = std::min(kDepth, depth - k0);
    const T* left = a.data + k0;
    if (!in_place) {
      for (int64_t k = 0; k < count; ++k) {
        const T* from = a.data + (k0 + k) * a.column_step;
        T* to = scratch.left.data() + k * rows;
        for (int64_t i = 0; i < rows; ++i) to[i] = from[i * a.row_step];
      }
      left = scratch.left.data();
    }
    panels.for_each(0, panels.padded, [&](int64_t first, int64_t width) {
      T* const panel = scratch.right.data() + first * count;
      const Matrix<const T> from = b.from(k0, first);
      pack_panel(from.data, from.row_step, from.column_step, count, std::min(width, columns - first), width, panel);
      multiply_panel(rows, count, left, scratch.rows.data(), scratch.steps.data(), panel, width, result + first,
                     panels.padded, k0 > 0);
    });
  }
}

template <class T>
void gemm(int64_t m, int64_t n, int64_t k, Matrix<const T> a, Matrix<const T> b, Matrix<T> c) {
  GemmScratch<T> scratch;
  std::vector<T> result(static_cast<std::size_t>(std::min(m, kTileRows) * Panels<T>(std::min(n, kTileColumns)).padded));
  for (int64_t i0 = 0; i0 < m; i0 += kTileRows) {
    for (int64_t j0 = 0; j0 < n; j0 += kTileColumns) {
      const int64_t rows = std::min(kTileRows, m - i0), columns = std::min(kTileColumns, n - j0);
      multiply_tile(rows, columns, k, a.from(i0, 0), b.from(0, j0), result.data(), scratch);
      const int64_t pitch = Panels<T>(columns).padded;
      const Matrix<T> to = c.from(i0, j0);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j)
          to.data[i * to.row_step + j * to.column_step] = result[static_cast<std::size_t>(i * pitch + j)];
      }
    }
  }
}

template void multiply_tile(int64_t, int64_t, int64_t, Matrix<const float>, Matrix<const float>, float*,
                            GemmScratch<float>&);
template void multiply_tile(int64_t, int64_t, int64_t, Matrix<const double>, Matrix<const double>, double*,
                            GemmScratch<double>&);
template void gemm(int64_t, int64_t, int64_t, Matrix<const float>, Matrix<const float>, Matrix<float>);
template void gemm(int64_t, int64_t, int64_t, Matrix<const double>, Matrix<const double>, Matrix<double>);

}  // namespace halo::cpu
