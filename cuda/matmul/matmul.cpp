#include <halo/core/copy.h>
#include <halo/ops/matmul_backend.h>
#include <halo/ops/unary_backend.h>

#include "../runtime/traits.h"
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

/// A batch of few tiles and a long depth. The library splits the depth of one product, but not that of a batch.
bool is_deep_batch(const GemmProblem& p, int multiprocessors) {
  constexpr int64_t kTile = 64, kDeep = 4096;
  const int64_t tiles = p.batch * ((p.m + kTile - 1) / kTile) * ((p.n + kTile - 1) / kTile);
  return p.batch > 1 && p.k >= kDeep && 2 * tiles < multiprocessors;
}

void one_by_one(const GemmProblem& p, const Tensor& a, const Tensor& b, const Tensor& c) {
  GemmProblem one = p;
  one.batch = 1;
  const auto matrix = [](const Tensor& t, int64_t begin) {
    return Tensor(t.storage(), t.dtype(), {1}, {1}, t.storage_offset() + begin);
  };
  for (int64_t i = 0; i < p.batch; ++i) {
    gemm(one, matrix(a, i * p.batch_a), matrix(b, i * p.batch_b), matrix(c, i * p.batch_c));
  }
}

}  // namespace

void gemm(const GemmProblem& problem, const Tensor& a, const Tensor& b, const Tensor& c) {
  if (problem.m == 0 || problem.n == 0 || problem.batch == 0) return;
  if (problem.k == 0) return scale(problem, c);
  if (few_rows_gemm(problem, a, b, c) || split_gemm(problem, a, b, c)) return;
  if (is_deep_batch(problem, device_traits(c.device().index).multiprocessors)) return one_by_one(problem, a, b, c);
  if (cublaslt_gemm(problem, a, b, c)) return;
  tiled_gemm(problem, a, b, c);
}

}  // namespace halo::cuda
