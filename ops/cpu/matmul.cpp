// Matrix products on the CPU: float64 with Eigen (oracle.h), float32 as tiles of C on several threads. Tiles, and the
// parts of long sums, are cut by the problem alone, so that bits do not depend on the number of threads.
#include <halo/core/denormals.h>
#include <halo/core/parallel.h>
#include <halo/ops/matmul_backend.h>

#include <algorithm>
#include <vector>

#include "gemm.h"
#include "oracle.h"
#include "tiles.h"

namespace halo::cpu {
namespace {

/// Longer sums are made of parts of this depth, added up in float64: their error does not grow with the depth.
constexpr int64_t kDepth = 1024;

int64_t pieces(int64_t n, int64_t piece) { return (n + piece - 1) / piece; }

/// A product of a batch, as a left operand that is read where it lies and a right one that is packed.
struct Product {
  int64_t rows, columns, depth;
  Matrix<const float> left, right;
  Matrix<float> result;
  int64_t left_batch, right_batch;  ///< from one matrix of the batch to the next

  /// C^float = B^float A^float: the same sums.
  Product exchanged() const {
    return {columns, rows, depth, right.transposed(), left.transposed(), result.transposed(), right_batch, left_batch};
  }

  /// Cycles, roughly: multiplying, packing, writing.
  double cost() const {
    const Panels panels(columns);
    const double m = static_cast<double>(rows), n = static_cast<double>(columns), k = static_cast<double>(depth);
    const double multiply =
        std::max(m, 4.0) * static_cast<double>(panels.padded) * k / static_cast<double>(2 * panels.lanes);
    const double pack_right = n * k * static_cast<double>(pieces(rows, kTileRows)) * (right.column_step == 1 ? 0.4 : 1);
    const double pack_left =
        left.column_step == 1 ? 0 : 0.15 * m * k * static_cast<double>(pieces(columns, kTileColumns));
    return multiply + pack_right + pack_left + m * n * (result.column_step == 1 ? 0.25 : 1);
  }
};

Product product_of(const GemmProblem& p, const float* a, const float* b, float* c) {
  const Matrix<const float> left{a, p.lda, 1}, right{b, p.ldb, 1};
  const Product product{p.m,
                        p.n,
                        p.k,
                        p.transpose_a ? left.transposed() : left,
                        p.transpose_b ? right.transposed() : right,
                        Matrix<float>{c, p.ldc, 1},
                        p.batch_a,
                        p.batch_b};
  const Product exchanged = product.exchanged();
  return exchanged.cost() < product.cost() ? exchanged : product;
}

/// c = alpha values + beta c for dense rows of `pitch` values.
template <class Value>
void write(const GemmProblem& p, int64_t rows, int64_t columns, const Value* values, int64_t pitch, Matrix<float> c) {
  const Value alpha = static_cast<Value>(p.alpha), beta = static_cast<Value>(p.beta);
  const auto put = [&](int64_t i, int64_t j) {
    float& to = c.data[i * c.row_step + j * c.column_step];
    const Value value = alpha * values[i * pitch + j];
    to = static_cast<float>(beta == Value(0) ? value : value + beta * static_cast<Value>(to));
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

/// A product cut into tiles of the result, and long sums into parts. Where tiles are few, their parts are split among
/// tasks too.
class TiledProduct {
 public:
  TiledProduct(const GemmProblem& problem, const Product& product)
      : problem_(problem),
        product_(product),
        row_tiles_(pieces(product.rows, kTileRows)),
        column_tiles_(pieces(product.columns, kTileColumns)),
        tiles_(problem.batch * row_tiles_ * column_tiles_),
        parts_(std::max<int64_t>(1, pieces(problem.k, kDepth))),
        splits_(std::clamp<int64_t>(kEnoughTasks / std::max<int64_t>(1, tiles_), 1, parts_)),
        size_(std::min(product.rows, kTileRows) * Panels(std::min(product.columns, kTileColumns)).padded) {}

  void run() {
    std::vector<double> sums(static_cast<std::size_t>(splits_ > 1 ? tiles_ * splits_ * size_ : 0));
    const int64_t tile = std::min(product_.rows, kTileRows) * std::min(product_.columns, kTileColumns);
    const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, tile * std::max<int64_t>(1, problem_.k)));
    parallel_for(tiles_ * splits_, grain, [&](int64_t begin, int64_t end) {
      GemmScratch scratch;
      std::vector<float> result(static_cast<std::size_t>(size_));
      std::vector<double> own(static_cast<std::size_t>(parts_ > 1 && splits_ == 1 ? size_ : 0));
      for (int64_t task = begin; task < end; ++task) {
        const Place at = place(task / splits_);
        if (parts_ == 1) {
          whole(at, result.data(), scratch);
        } else {
          double* const to = splits_ > 1 ? sums.data() + task * size_ : own.data();
          add_parts(at, task % splits_, result.data(), to, scratch);
          if (splits_ == 1) put(at, to);
        }
      }
    });
    for (int64_t i = 0; splits_ > 1 && i < tiles_; ++i) {
      double* const total = sums.data() + i * splits_ * size_;
      for (int64_t e = size_; e < splits_ * size_; ++e) total[e % size_] += total[e];
      put(place(i), total);
    }
  }

 private:
  static constexpr int64_t kEnoughTasks = 8;

  /// Where a tile lies; the values of its rows are `pitch` apart where they are dense.
  struct Place {
    int64_t batch, row, rows, column, columns, pitch;
  };
  Place place(int64_t tile) const {
    const int64_t row = tile / column_tiles_ % row_tiles_ * kTileRows, column = tile % column_tiles_ * kTileColumns;
    const int64_t columns = std::min(kTileColumns, product_.columns - column);
    return {tile / column_tiles_ / row_tiles_,
            row,
            std::min(kTileRows, product_.rows - row),
            column,
            columns,
            Panels(columns).padded};
  }
  Matrix<float> result(const Place& at) const {
    Matrix<float> c = product_.result.from(at.row, at.column);
    c.data += at.batch * problem_.batch_c;
    return c;
  }
  template <class Value>
  void put(const Place& at, const Value* values) const {
    write(problem_, at.rows, at.columns, values, at.pitch, result(at));
  }

  /// One part of the sums of a tile.
  void part(const Place& at, int64_t index, float* values, int64_t pitch, GemmScratch& scratch) const {
    const int64_t k = index * kDepth;
    Matrix<const float> left = product_.left.from(at.row, k), right = product_.right.from(k, at.column);
    left.data += at.batch * product_.left_batch;
    right.data += at.batch * product_.right_batch;
    multiply_tile(at.rows, at.columns, std::min(kDepth, problem_.k - k), left, right, values, pitch, scratch);
  }
  /// A tile whose sums have one part: into the result itself where that takes whole vectors.
  void whole(const Place& at, float* values, GemmScratch& scratch) const {
    const Matrix<float> c = result(at);
    if (problem_.alpha == 1 && problem_.beta == 0 && c.column_step == 1 && at.pitch == at.columns) {
      return part(at, 0, c.data, c.row_step, scratch);
    }
    part(at, 0, values, at.pitch, scratch);
    put(at, values);
  }
  /// sums = the parts of a split, in order.
  void add_parts(const Place& at, int64_t split, float* values, double* sums, GemmScratch& scratch) const {
    const int64_t count = at.rows * at.pitch;
    std::fill_n(sums, count, 0.0);
    for (int64_t index = split * parts_ / splits_; index < (split + 1) * parts_ / splits_; ++index) {
      part(at, index, values, at.pitch, scratch);
      for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(values[i]);
    }
  }

  const GemmProblem& problem_;
  const Product& product_;
  int64_t row_tiles_, column_tiles_, tiles_, parts_, splits_;
  int64_t size_;  ///< of a tile's values
};

}  // namespace

void gemm(const GemmProblem& p, const Tensor& a, const Tensor& b, const Tensor& c) {
  const DenormalGuard denormals(flush_denormals());
  if (c.dtype() == float64) return oracle::gemm(p, a, b, c);
  const Product product = product_of(p, a.data<float>(), b.data<float>(), c.data<float>());
  TiledProduct(p, product).run();
}

}  // namespace halo::cpu
