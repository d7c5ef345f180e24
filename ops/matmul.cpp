#include <halo/core/copy.h>
#include <halo/core/error.h>
#include <halo/core/view.h>
#include <halo/ops/backend.h>
#include <halo/ops/matmul.h>
#include <halo/ops/matmul_backend.h>

#include <algorithm>
#include <optional>

namespace halo::ops {
namespace {

/// An operand [batch..., rows, columns] as GemmProblem steps through it.
struct Operand {
  Tensor tensor;
  bool transposed = false;
  int64_t ld = 0, batch = 0;
};

/// The distance between rows, if the elements of a row are neighbours and rows do not overlap.
std::optional<int64_t> row_pitch(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  const int64_t length = std::max<int64_t>(1, columns);
  if (columns > 1 && column_stride != 1) return std::nullopt;
  if (rows <= 1) return length;
  return row_stride >= length ? std::optional(row_stride) : std::nullopt;
}

/// The one stride that steps through all batch axes, if there is one.
std::optional<int64_t> batch_stride(const Tensor& t) {
  std::optional<int64_t> stride;
  int64_t next = 0;  // what the stride of the next axis outward must be
  for (int axis = t.rank() - 3; axis >= 0; --axis) {
    if (t.shape()[axis] == 1) continue;
    if (stride && t.strides()[axis] != next) return std::nullopt;
    if (!stride) stride = t.strides()[axis];
    next = t.strides()[axis] * t.shape()[axis];
  }
  return stride.value_or(0);
}

Operand operand(const Tensor& t) {
  const int64_t rows = t.size(-2), columns = t.size(-1);
  const int64_t row_stride = t.strides()[t.rank() - 2], column_stride = t.strides()[t.rank() - 1];
  if (const auto batch = batch_stride(t)) {
    if (const auto ld = row_pitch(rows, columns, row_stride, column_stride)) return {t, false, *ld, *batch};
    if (const auto ld = row_pitch(columns, rows, column_stride, row_stride)) return {t, true, *ld, *batch};
  }
  return {view::dense(t), false, std::max<int64_t>(1, columns), rows * columns};
}

/// c = a b + beta c for a [batch..., m, k], b [batch..., k, n] and a dense c, all of one batch shape.
void multiply(const Tensor& a, const Tensor& b, double beta, const Tensor& c) {
  if (c.numel() == 0) return;
  const Operand left = operand(a), right = operand(b);
  GemmProblem problem{.transpose_a = left.transposed,
                      .transpose_b = right.transposed,
                      .m = c.size(-2),
                      .n = c.size(-1),
                      .k = a.size(-1),
                      .lda = left.ld,
                      .ldb = right.ld,
                      .ldc = c.size(-1),
                      .batch_a = left.batch,
                      .batch_b = right.batch,
                      .beta = beta};
  problem.batch = c.numel() / (problem.m * problem.n);
  // Matrices that follow each other and share the right operand are one tall matrix.
  if (right.batch == 0 && !left.transposed && left.batch == problem.m * left.ld) {
    problem.m *= problem.batch;
    problem.batch = 1;
  }
  problem.batch_c = problem.m * problem.n;
  run_backend("gemm", c.device(), cpu::gemm, cuda::gemm, problem, left.tensor, right.tensor, writes(c));
}

Shape with_matrix(Shape batch, int64_t rows, int64_t columns) {
  batch.push_back(rows);
  batch.push_back(columns);
  return batch;
}

Shape batch_of(const Tensor& t) {
  Shape batch = t.shape();
  batch.erase(batch.rank() - 1);
  batch.erase(batch.rank() - 1);
  return batch;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_floating("matmul", {{"input", a}, {"other", b}});
  if (a.rank() < 2 || b.rank() < 2 || a.size(-1) != b.size(-2)) {
    fail("matmul: shapes expected [..., m, k] and [..., k, n], got ", a.shape(), " and ", b.shape());
  }
  const Shape batch = broadcast_shapes("matmul", batch_of(a), batch_of(b));
  Tensor c = empty(with_matrix(batch, a.size(-2), b.size(-1)), a.options());
  multiply(view::expand(a, with_matrix(batch, a.size(-2), a.size(-1))),
           view::expand(b, with_matrix(batch, b.size(-2), b.size(-1))), 0, c);
  return c;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_floating("linear", {{"input", x}, {"weight", weight}, {"bias", bias, kOptional}});
  if (x.rank() != 2 || weight.rank() != 2 || x.size(1) != weight.size(1)) {
    fail("linear: input and weight expected [rows, in] and [out, in], got ", x.shape(), " and ", weight.shape());
  }
  const int64_t out_features = weight.size(0);
  if (bias.defined() && bias.shape() != Shape{out_features}) {
    fail("linear: bias expected shape ", Shape{out_features}, " (weight ", weight.shape(), "), got ", bias.shape());
  }
  Tensor y = empty({x.size(0), out_features}, x.options());
  if (bias.defined()) copy(view::expand(bias, y.shape()), y);
  multiply(x, view::transpose(weight, 0, 1), bias.defined() ? 1 : 0, y);
  return y;
}

}  // namespace halo::ops
