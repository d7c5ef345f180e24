// Matrix products.
#pragma once

#include <halo/core/tensor.h>

namespace halo {

/// A batch of products C = alpha op(A) op(B) + beta C of row-major matrices: op(A) [m, k], op(B) [k, n], C [m, n]. A
/// transposed operand is stored the other way round. All distances are in elements.
struct GemmProblem {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;  ///< between rows as stored: at least their length
  int64_t batch = 1;
  int64_t batch_a = 0, batch_b = 0, batch_c = 0;  ///< between matrices; 0 repeats one (never for C)
  double alpha = 1, beta = 0;
};

namespace ops {

/// a [batch..., m, k] times b [batch..., k, n]; batch axes broadcast. Transposed, sliced and broadcast operands are
/// read where they lie if a matrix product can step through them, else copied.
Tensor matmul(const Tensor& a, const Tensor& b);

/// y = x weight^T + bias: x [rows, in], weight [out, in], bias [out] or undefined; y [rows, out].
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace ops
}  // namespace halo
