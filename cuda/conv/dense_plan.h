// Planning of the dense engine: problem -> tile shape, column grouping, pipeline, workspace. Host only.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <optional>

#include "dense_params.h"

namespace halo::cuda::conv {

/// A compiled shape of the kernel: `columns` of one column tile; `row_tiles` x `warpgroups` x 64 rows a work item.
struct DenseVariant {
  int columns, row_tiles, warpgroups;
  double tflops_fp32, tflops_tf32;  ///< of the inner loop on an H200; 0: not compiled
  int rows() const { return row_tiles * warpgroups * 64; }
};

inline constexpr DenseVariant kDenseVariants[] = {
    {8, 4, 3, 30, 75},    {16, 4, 3, 50, 139},   {24, 2, 3, 64, 170},  {32, 4, 3, 85, 232},  {32, 2, 3, 80, 220},
    {48, 2, 3, 106, 254}, {48, 1, 3, 95, 220},   {64, 2, 3, 129, 284}, {64, 1, 3, 115, 240}, {96, 1, 3, 136, 280},
    {96, 2, 3, 0, 320},   {128, 1, 3, 147, 300}, {128, 1, 4, 0, 355},
};

struct DensePlan {
  DenseParams params{};  ///< without pointers
  DenseAxisMap map[3]{};
  ConvProblem problem;  ///< with mergeable axes merged
  bool forward = true;
  int variant = 0;
  int splits = 1;
  bool clear_target = false;  ///< some outputs have no taps: zeros come from a memset
  std::size_t shared_bytes = 0;
  int64_t weight_floats = 0;  ///< prepared weights, high and low parts
  int64_t column_count = 0;
  std::size_t workspace_bytes = 0, weight_bytes = 0, column_bytes = 0;  ///< workspace: weights, columns, partials
  double predicted_ms = 0;
};

/// The cheapest plan, or none where the engine's limits (see dense.cu) do not hold.
std::optional<DensePlan> plan_dense(const ConvProblem& problem, const ConvConfig& config, int multiprocessors);

}  // namespace halo::cuda::conv
