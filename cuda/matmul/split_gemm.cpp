#include "split_gemm.h"

#include <halo/core/precision.h>

#include "../launch.h"
#include "../runtime/device.h"
#include "split_gemm_launch.h"

namespace halo::cuda {
namespace {

int attribute(cudaDeviceAttr which, Device device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device.index), "matmul");
  return value;
}

/// What float32 arithmetic takes at best.
double plain_milliseconds(const GemmProblem& p) {
  constexpr double kFlopPerMs = 51e9;
  return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) *
         static_cast<double>(p.batch) / kFlopPerMs;
}

}  // namespace

bool split_gemm(const GemmProblem& problem, const Tensor& a, const Tensor& b, const Tensor& c, bool forced) {
  if (c.dtype() != DType::Float32 || precision() != Precision::Float32) return false;
  if (attribute(cudaDevAttrComputeCapabilityMajor, c.device()) != 9) return false;
  const int multiprocessors = attribute(cudaDevAttrMultiProcessorCount, c.device());
  const SplitGemmPlan plan = plan_split_gemm(problem, a.data<float>(), b.data<float>(), multiprocessors);
  if (!plan.valid || (!forced && plan.milliseconds > plain_milliseconds(problem))) return false;
  const DeviceScope scope(c.device());
  const Storage workspace(plan.workspace_bytes, c.device());
  run_split_gemm(plan, problem, a.data<float>(), b.data<float>(), c.data<float>(), workspace.data(), multiprocessors,
                 scope.stream());
  return true;
}

}  // namespace halo::cuda
