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
    {8, 4, 3, 30, 75},    {16, 4, 3, 50, 139},  {24, 2, 3, 64, 170},  {32, 4, 3, 85, 200},  {32, 2, 3, 80, 190},
    {48, 2, 3, 112, 254}, {48, 1, 3, 106, 220}, {64, 2, 3, 133, 286}, {64, 1, 3, 115, 240}, {96, 2, 2, 136, 0},
    {96, 2, 3, 0, 360},   {128, 1, 3, 141, 0},  {128, 2, 2, 0, 362},  {128, 1, 4, 0, 365},
};

struct DensePlan {
  DenseParams params{};  ///< without pointers
  ConvProblem problem;   ///< with mergeable axes merged
  bool forward = true;
  int variant = 0;
  int splits = 1;
  bool clear_target = false;  ///< some outputs have no taps: zeros come from a memset
  std::size_t shared_bytes = 0;
  int64_t weight_floats = 0;                          ///< prepared weights, high and low parts
  std::size_t workspace_bytes = 0, weight_bytes = 0;  ///< workspace: weights, partial results
  double predicted_ms = 0;
};

/// The cheapest plan, or none where the engine's limits (see dense.cu) do not hold.
std::optional<DensePlan> plan_dense(const ConvProblem& problem, const ConvConfig& config, int multiprocessors);

}  // namespace halo::cuda::conv
