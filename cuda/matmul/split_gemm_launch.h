// The door to the kernel of split_gemm.cuh.
#pragma once

#include "split_gemm_plan.h"
#include <cuda_runtime.h>

namespace halo::cuda {

/// An operand that is copied first (SplitGemmPlan::copies_a).
struct SplitGemmCopy {
  const float* from;
  int64_t matrices, lines, length;  ///< of each line
  int64_t step, pitch;              ///< floats between matrices, and between lines
  int lanes_log = 0;                ///< threads a line, set by align_split_gemm
};

/// Enqueues the copy; `to` holds matrices * lines lines of `length` rounded up to kSplitGemmAlignment.
void align_split_gemm(SplitGemmCopy copy, float* to, int multiprocessors, cudaStream_t stream);

/// Enqueues `plan`, made for these operands. `workspace`: plan.workspace_bytes bytes.
void run_split_gemm(const SplitGemmPlan& plan, const GemmProblem& problem, const float* a, const float* b, float* c,
                    void* workspace, int multiprocessors, cudaStream_t stream);

}  // namespace halo::cuda
