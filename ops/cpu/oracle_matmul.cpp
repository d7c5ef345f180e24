// Matrix products, a tile of the result at a time. Operands are copied in panels, so that their layout changes no bit.
#include <halo/core/parallel.h>

#include <algorithm>

#include "oracle.h"
#include <Eigen/Core>

namespace halo::cpu::oracle {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
using Strided = Eigen::Map<const Matrix, 0, Strides>;

constexpr int64_t kTile = 256, kDepth = 1024;

}  // namespace

void gemm(const GemmProblem& p, const Tensor& a, const Tensor& b, const Tensor& c) {
  const Strides a_strides = p.transpose_a ? Strides(1, p.lda) : Strides(p.lda, 1);
  const Strides b_strides = p.transpose_b ? Strides(1, p.ldb) : Strides(p.ldb, 1);
  const int64_t row_tiles = (p.m + kTile - 1) / kTile, column_tiles = (p.n + kTile - 1) / kTile;
  const int64_t work = std::min(p.m, kTile) * std::min(p.n, kTile) * std::max<int64_t>(1, p.k);
  const int64_t grain = std::max<int64_t>(1, 32 * 1024 / std::max<int64_t>(1, work));
  parallel_for(p.batch * row_tiles * column_tiles, grain, [&](int64_t begin, int64_t end) {
    Matrix left, right, product;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t batch = task / column_tiles / row_tiles;
      const int64_t i = task / column_tiles % row_tiles * kTile, j = task % column_tiles * kTile;
      const int64_t rows = std::min(kTile, p.m - i), columns = std::min(kTile, p.n - j);
      const Strided whole_a(a.data<double>() + batch * p.batch_a, p.m, p.k, a_strides);
      const Strided whole_b(b.data<double>() + batch * p.batch_b, p.k, p.n, b_strides);
      product.setZero(rows, columns);
      for (int64_t k = 0; k < p.k; k += kDepth) {
        const int64_t depth = std::min(kDepth, p.k - k);
        left = whole_a.block(i, k, rows, depth);
        right = whole_b.block(k, j, depth, columns);
        product.noalias() += left * right;
      }
      Eigen::Map<Matrix, 0, Eigen::OuterStride<>> result(c.data<double>() + batch * p.batch_c + i * p.ldc + j, rows,
                                                         columns, {p.ldc});
      if (p.beta == 0) {
        result = p.alpha * product;
      } else {
        result = p.alpha * product + p.beta * result;
      }
    }
  });
}

}  // namespace halo::cpu::oracle
