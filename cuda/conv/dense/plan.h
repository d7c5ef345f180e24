// Planning of the dense engine: problem -> tile shape, column grouping, pipeline, workspace. Host only.
#pragma once

#include <halo/cuda/conv/algorithm.h>

#include <optional>

#include "params.h"

namespace halo::cuda::conv {

/// Shapes that one source file compiles.
enum class DenseShapes { Narrow, Wide, Storers };

/// A compiled shape of the kernel: `columns` of one column tile; `row_tiles` x `warpgroups` x 64 rows a work item.
struct DenseVariant {
  int columns, row_tiles, warpgroups;
  bool storers;                     ///< a further warpgroup stores results; only with halos as boxes
  double tflops_fp32, tflops_tf32;  ///< of the inner loop on an H200; 0: not compiled
  constexpr int rows() const { return row_tiles * warpgroups * 64; }
  constexpr int threads() const { return (warpgroups + (storers ? 2 : 1)) * 128; }
  constexpr DenseShapes shapes() const {
    return storers ? DenseShapes::Storers : columns < 64 ? DenseShapes::Narrow : DenseShapes::Wide;
  }
};

inline constexpr DenseVariant kDenseVariants[] = {
    {8, 4, 3, false, 30, 75},    {16, 4, 3, false, 50, 139},  {24, 2, 3, false, 66, 170},  {32, 4, 3, false, 85, 200},
    {32, 2, 3, false, 84, 190},  {48, 2, 3, false, 115, 254}, {48, 1, 3, false, 106, 220}, {64, 2, 3, false, 133, 286},
    {64, 1, 3, false, 115, 240}, {64, 2, 3, true, 0, 286},    {96, 1, 3, false, 136, 0},   {96, 2, 2, false, 136, 0},
    {96, 2, 3, false, 0, 360},   {128, 1, 3, false, 141, 0},  {128, 2, 2, false, 0, 362},  {128, 2, 2, true, 0, 362},
    {64, 2, 2, true, 110, 0},    {128, 1, 2, true, 129, 0},
};

struct DensePlan {
  DenseParams params{};  ///< without pointers
  ConvProblem problem;   ///< with mergeable axes merged
  bool forward = true;
  int variant = 0;
  bool windows = false;  ///< a thread holds four neighbouring rows and slides along kWindowTaps (consume_windows.cuh)
  int splits = 1;
  bool clear_target = false;  ///< some outputs have no taps: zeros come from a memset
  std::size_t shared_bytes = 0;
  int64_t weight_floats = 0;                          ///< prepared weights, high and low parts
  std::size_t workspace_bytes = 0, weight_bytes = 0;  ///< workspace: weights, partial results
  double predicted_ms = 0;
};

/// The cheapest plan, or none where the engine's limits (see dense.cu) do not hold. `variant`: of that compiled shape
/// alone, for tests and measurements.
std::optional<DensePlan> plan_dense(const ConvProblem& problem, const ConvConfig& config, int multiprocessors,
                                    std::optional<int> variant = std::nullopt);

}  // namespace halo::cuda::conv
