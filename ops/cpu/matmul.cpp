// Matrix products on the CPU: tiles of C on several threads, each a single-threaded product (isa.h). Tiles are cut by
// the problem alone, so that bits do not depend on the number of threads.
#include <halo/core/denormals.h>
#include <halo/core/parallel.h>
#include <halo/ops/matmul_backend.h>

#include <algorithm>
#include <vector>

#include "isa.h"

namespace halo::cpu {
namespace {

constexpr int64_t kTileRows = 128, kTileColumns = 512;
/// Longer sums are made of parts of this depth, added up in float64: their error does not grow with the depth.
constexpr int64_t kDepth = 2048;

struct Tile {
  int64_t rows, columns;
};

/// One tile of C. `a` and `b` point at its first row and column.
template <class T>
void multiply_tile(const GemmProblem& p, Tile tile, const T* a, const T* b, T* c) {
  const T alpha = static_cast<T>(p.alpha), beta = static_cast<T>(p.beta);
  if (p.k <= kDepth) {
    gemm<T>(p.transpose_a, p.transpose_b, tile.rows, tile.columns, p.k, alpha, a, p.lda, b, p.ldb, beta, c, p.ldc);
    return;
  }
  const int64_t step_a = p.transpose_a ? p.lda : 1, step_b = p.transpose_b ? 1 : p.ldb;
  std::vector<T> part(static_cast<std::size_t>(tile.rows * tile.columns));
  std::vector<double> sum(part.size(), 0.0);
  for (int64_t start = 0; start < p.k; start += kDepth) {
    gemm<T>(p.transpose_a, p.transpose_b, tile.rows, tile.columns, std::min(kDepth, p.k - start), T(1),
            a + start * step_a, p.lda, b + start * step_b, p.ldb, T(0), part.data(), tile.columns);
    for (std::size_t i = 0; i < part.size(); ++i) sum[i] += static_cast<double>(part[i]);
  }
  for (int64_t i = 0; i < tile.rows; ++i) {
    for (int64_t j = 0; j < tile.columns; ++j) {
      T& out = c[i * p.ldc + j];
      const double product = p.alpha * sum[static_cast<std::size_t>(i * tile.columns + j)];
      out = static_cast<T>(p.beta == 0 ? product : product + p.beta * static_cast<double>(out));
    }
  }
}

}  // namespace

void gemm(const GemmProblem& p, const Tensor& a, const Tensor& b, const Tensor& c) {
  const DenormalGuard denormals(flush_denormals());
  dispatch_float("matmul", c.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    const T *const pa = a.data<T>(), *const pb = b.data<T>();
    T* const pc = c.data<T>();
    const int64_t row_tiles = (p.m + kTileRows - 1) / kTileRows;
    const int64_t column_tiles = (p.n + kTileColumns - 1) / kTileColumns;
    const int64_t step_a = p.transpose_a ? 1 : p.lda, step_b = p.transpose_b ? p.ldb : 1;
    const int64_t work = std::min(p.m, kTileRows) * std::min(p.n, kTileColumns) * std::max<int64_t>(1, p.k);
    const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, work));
    parallel_for(p.batch * row_tiles * column_tiles, grain, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t column = task % column_tiles * kTileColumns;
        const int64_t row = task / column_tiles % row_tiles * kTileRows, i = task / column_tiles / row_tiles;
        multiply_tile<T>(p, {std::min(kTileRows, p.m - row), std::min(kTileColumns, p.n - column)},
                         pa + i * p.batch_a + row * step_a, pb + i * p.batch_b + column * step_b,
                         pc + i * p.batch_c + row * p.ldc + column);
      }
    });
  });
}

}  // namespace halo::cpu
