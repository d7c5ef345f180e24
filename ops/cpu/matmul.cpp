// Matrix products on the CPU: tiles of C on several threads. Tiles, and the parts of long sums, are cut by the problem
// alone, so that bits do not depend on the number of threads.
#include <halo/core/denormals.h>
#include <halo/core/parallel.h>
#include <halo/ops/matmul_backend.h>

#include <algorithm>
#include <vector>

#include "gemm.h"
#include "tiles.h"

namespace halo::cpu {
namespace {

/// Longer sums are made of parts of this depth, added up in float64: their error does not grow with the depth.
constexpr int64_t kDepth = 1024;

int64_t pieces(int64_t n, int64_t piece) { return (n + piece - 1) / piece; }

/// A product of a batch, as a left operand that is read where it lies and a right one that is packed.
template <class T>
struct Product {
  int64_t rows, columns, depth;
  Matrix<const T> left, right;
  Matrix<T> result;
  int64_t left_batch, right_batch;  ///< from one matrix of the batch to the next

  /// C^T = B^T A^T: the same sums.
  Product exchanged() const {
    return {columns, rows, depth, right.transposed(), left.transposed(), result.transposed(), right_batch, left_batch};
  }

  /// Cycles, roughly: multiplying, packing, writing.
  double cost() const {
    const Panels<T> panels(columns);
    const double m = static_cast<double>(rows), n = static_cast<double>(columns), k = static_cast<double>(depth);
    const double multiply =
        std::max(m, 4.0) * static_cast<double>(panels.padded) * k / static_cast<double>(2 * panels.lanes);
    const double pack_right =
        n * k * static_cast<double>(pieces(rows, kTileRows)) * (right.column_step == 1 ? 0.25 : 1);
    const double pack_left =
        left.column_step == 1 ? 0 : 0.25 * m * k * static_cast<double>(pieces(columns, kTileColumns));
    return multiply + pack_right + pack_left + m * n * (result.column_step == 1 ? 0.25 : 1);
  }
};

template <class T>
Product<T> product_of(const GemmProblem& p, const T* a, const T* b, T* c) {
  const Matrix<const T> left{a, p.lda, 1}, right{b, p.ldb, 1};
  const Product<T> product{p.m,
                           p.n,
                           p.k,
                           p.transpose_a ? left.transposed() : left,
                           p.transpose_b ? right.transposed() : right,
                           Matrix<T>{c, p.ldc, 1},
                           p.batch_a,
                           p.batch_b};
  const Product<T> exchanged = product.exchanged();
  return exchanged.cost() < product.cost() ? exchanged : product;
}

/// c = alpha values + beta c for dense rows of `pitch` values.
template <class T, class Value>
void write(const GemmProblem& p, int64_t rows, int64_t columns, const Value* values, int64_t pitch, Matrix<T> c) {
  const Value alpha = static_cast<Value>(p.alpha), beta = static_cast<Value>(p.beta);
  const auto put = [&](int64_t i, int64_t j) {
    T& to = c.data[i * c.row_step + j * c.column_step];
    const Value value = alpha * values[i * pitch + j];
    to = static_cast<T>(beta == Value(0) ? value : value + beta * static_cast<Value>(to));
  };
  constexpr int64_t kBlock = 16;
  if (c.column_step == 1) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) put(i, j);
    }
    return;
  }
  for (int64_t j0 = 0; j0 < columns; j0 += kBlock) {  // the lines of `values` stay in the cache
    for (int64_t j = j0; j < std::min(columns, j0 + kBlock); ++j) {
      for (int64_t i = 0; i < rows; ++i) put(i, j);
    }
  }
}

/// Where a tile of a batch of products lies.
struct Place {
  int64_t batch, row, rows, column, columns;
};

template <class T>
void multiply(const GemmProblem& p, const Product<T>& first) {
  const int64_t row_tiles = pieces(first.rows, kTileRows), column_tiles = pieces(first.columns, kTileColumns);
  const int64_t tiles = p.batch * row_tiles * column_tiles, parts = std::max<int64_t>(1, pieces(p.k, kDepth));
  constexpr int64_t kEnoughTasks = 8;
  const int64_t splits = std::clamp<int64_t>(kEnoughTasks / std::max<int64_t>(1, tiles), 1, parts);
  const int64_t pitch = Panels<T>(std::min(first.columns, kTileColumns)).padded;
  const int64_t size = std::min(first.rows, kTileRows) * pitch;
  const auto place = [&](int64_t tile) {
    const int64_t column = tile % column_tiles * kTileColumns, row = tile / column_tiles % row_tiles * kTileRows;
    return Place{tile / column_tiles / row_tiles, row, std::min(kTileRows, first.rows - row), column,
                 std::min(kTileColumns, first.columns - column)};
  };
  const auto put = [&](const Place& at, const auto* values) {
    Matrix<T> c = first.result.from(at.row, at.column);
    c.data += at.batch * p.batch_c;
    write(p, at.rows, at.columns, values, Panels<T>(at.columns).padded, c);
  };
  std::vector<double> split_sums(static_cast<std::size_t>(splits > 1 ? tiles * splits * size : 0));
  const int64_t work =
      std::min(first.rows, kTileRows) * std::min(first.columns, kTileColumns) * std::max<int64_t>(1, p.k);
  parallel_for(tiles * splits, std::max<int64_t>(1, 32768 / std::max<int64_t>(1, work)),
               [&](int64_t begin, int64_t end) {
                 GemmScratch<T> scratch;
                 std::vector<T> result(static_cast<std::size_t>(size));
                 std::vector<double> tile_sums(static_cast<std::size_t>(parts > 1 && splits == 1 ? size : 0));
                 for (int64_t task = begin; task < end; ++task) {
                   const Place at = place(task / splits);
                   const int64_t split = task % splits, count = at.rows * Panels<T>(at.columns).padded;
                   double* const sums = splits > 1 ? split_sums.data() + task * size : tile_sums.data();
                   if (parts > 1) std::fill_n(sums, count, 0.0);
                   for (int64_t part = split * parts / splits; part < (split + 1) * parts / splits; ++part) {
                     const int64_t k = part * kDepth;
                     Matrix<const T> left = first.left.from(at.row, k), right = first.right.from(k, at.column);
                     left.data += at.batch * first.left_batch;
                     right.data += at.batch * first.right_batch;
                     multiply_tile(at.rows, at.columns, std::min(kDepth, p.k - k), left, right, result.data(), scratch);
                     if (parts == 1) continue;
                     for (int64_t i = 0; i < count; ++i)
                       sums[i] += static_cast<double>(result[static_cast<std::size_t>(i)]);
                   }
                   if (parts == 1) put(at, result.data());
                   if (parts > 1 && splits == 1) put(at, sums);
                 }
               });
  if (splits == 1) return;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    double* const sums = split_sums.data() + tile * splits * size;
    for (int64_t i = size; i < splits * size; ++i) sums[i % size] += sums[i];
    put(place(tile), sums);
  }
}

}  // namespace

void gemm(const GemmProblem& p, const Tensor& a, const Tensor& b, const Tensor& c) {
  const DenormalGuard denormals(flush_denormals());
  dispatch_float("matmul", c.dtype(), [&](auto type) {
    using T = typename decltype(type)::type;
    multiply(p, product_of(p, a.data<T>(), b.data<T>(), c.data<T>()));
  });
}

}  // namespace halo::cpu
