#include "split_gemm.h"

#include <halo/core/precision.h>

#include <algorithm>
#include <cmath>

#include "../launch.h"
#include "../runtime/device.h"
#include "../runtime/traits.h"
#include "split_gemm_launch.h"

namespace halo::cuda {
namespace {

/// What float32 arithmetic takes elsewhere at best: multiplying, or moving the matrices. Another library must be well
/// ahead of that to be worth half a gigabyte that a program would have to ship: weights that few rows meet are read at
/// the same rate here. The library's tiles are half empty where a product is narrow, and it splits the depth of one
/// product but not that of a batch (eight of 64 x 64 with a depth of 131072 took 4 ms of it).
double worth_milliseconds(const GemmProblem& p, int multiprocessors) {
  constexpr double kFlopPerMs = 51e9, kBytesPerMs = 3.5e9, kLaunch = 0.008, kAhead = 1.3, kNarrow = 0.6;
  constexpr int64_t kTile = 64;
  const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  const auto batch = static_cast<double>(p.batch);
  const double tiles = batch * std::ceil(m / kTile) * std::ceil(n / kTile);
  const double busy = p.batch == 1 ? 1 : std::min(1.0, tiles / multiprocessors);
  const double reached = busy * (std::min(p.m, p.n) <= kTile ? kNarrow : 1);
  const double multiply = 2 * m * n * k * batch / (kFlopPerMs * reached);
  const double move = 4 * (m * k + k * n + m * n) * batch / kBytesPerMs + kLaunch;
  return move > multiply ? kAhead * move : multiply;
}

/// The matrices of an operand, [lines, length] each, copied to aligned lines.
Tensor aligned_copy(const Tensor& operand, int64_t matrices, int64_t lines, int64_t length, int64_t pitch, int64_t step,
                    int multiprocessors, cudaStream_t stream) {
  const int64_t padded = (length + kSplitGemmAlignment - 1) / kSplitGemmAlignment * kSplitGemmAlignment;
  const Tensor to = empty({matrices, lines, padded}, operand.options());
  const SplitGemmCopy copy{.from = operand.data<float>(),
                           .matrices = matrices,
                           .lines = lines,
                           .length = length,
                           .step = step,
                           .pitch = pitch};
  align_split_gemm(copy, to.data<float>(), multiprocessors, stream);
  return to;
}

}  // namespace

bool split_gemm(const GemmProblem& problem, const Tensor& a, const Tensor& b, const Tensor& c, bool forced) {
  if (c.dtype() != DType::Float32 || precision() != Precision::Float32) return false;
  const DeviceTraits& device = device_traits(c.device().index);
  if (!device.is_hopper()) return false;
  const int multiprocessors = device.multiprocessors;
  const SplitGemmPlan plan = plan_split_gemm(problem, a.data<float>(), b.data<float>(), multiprocessors);
  if (!plan.valid || (!forced && plan.milliseconds > worth_milliseconds(problem, multiprocessors))) return false;
  const DeviceScope scope(c.device());
  const auto operand = [&](const Tensor& t, bool copied, bool transposed, int64_t extent, int64_t pitch, int64_t step) {
    if (!copied) return t;
    return aligned_copy(t, step == 0 ? 1 : problem.batch, transposed ? problem.k : extent,
                        transposed ? extent : problem.k, pitch, step, multiprocessors, scope.stream());
  };
  const Tensor left = operand(a, plan.copies_a, problem.transpose_a, problem.m, problem.lda, problem.batch_a);
  const Tensor right = operand(b, plan.copies_b, !problem.transpose_b, problem.n, problem.ldb, problem.batch_b);
  const Storage workspace(plan.workspace_bytes, c.device());
  run_split_gemm(plan, problem, left.data<float>(), right.data<float>(), c.data<float>(), workspace.data(),
                 multiprocessors, scope.stream());
  return true;
}

}  // namespace halo::cuda
