#include <halo/core/copy.h>
#include <halo/ops/matmul_backend.h>
#include <halo/ops/unary_backend.h>

#include "cublaslt.h"
#include "few_rows.h"
#include "split_gemm.h"
#include "tiled.h"

namespace halo::cuda {
namespace {

/// C = beta C.
void scale(const GemmProblem& p, const Tensor& c) {
  const Tensor all(c.storage(), c.dtype(), {p.batch, p.m, p.n}, {p.batch_c, p.ldc, 1}, c.storage_offset());
  if (p.beta == 0) return halo::fill(all, 0);
  unary(UnaryOp::Scale, {.a = p.beta}, all, all);
}

}  // namespace

void gemm(const GemmProblem& problem, const Tensor& a, const Tensor& b, const Tensor& c) {
  if (problem.m == 0 || problem.n == 0 || problem.batch == 0) return;
  if (problem.k == 0) return scale(problem, c);
  if (few_rows_gemm(problem, a, b, c) || split_gemm(problem, a, b, c) || cublaslt_gemm(problem, a, b, c)) return;
  tiled_gemm(problem, a, b, c);
}

}  // namespace halo::cuda
