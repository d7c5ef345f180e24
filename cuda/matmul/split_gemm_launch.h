// The door to the kernel of split_gemm.cuh.
#pragma once

#include "split_gemm_plan.h"
#include <cuda_runtime.h>

namespace halo::cuda {

/// Enqueues `plan`, made for these operands. `workspace`: plan.workspace_bytes bytes.
void run_split_gemm(const SplitGemmPlan& plan, const GemmProblem& problem, const float* a, const float* b, float* c,
                    void* workspace, int multiprocessors, cudaStream_t stream);

}  // namespace halo::cuda
