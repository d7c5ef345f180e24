// Float32-accurate matrix products on Hopper tensor cores: which way round a product is computed, and how it is cut
// into tiles. split_gemm.cuh executes it.
//
//   target(row, column) = alpha * sum over depth of rows(row, depth) * columns(column, depth) + beta * target(row,
//   column)
//
// Rows are those of C and columns those of C, or, `swapped`, the other way round: whichever makes fewer tiles.
#pragma once

#include <halo/ops/matmul.h>

#include <cstddef>
#include <cstdint>

namespace halo::cuda {

/// Rows and columns of a tile: the compiled choices.
struct SplitGemmTileShape {
  int rows, columns;
};
inline constexpr SplitGemmTileShape kSplitGemmTiles[] = {{192, 128}, {192, 64}, {128, 128}};
inline constexpr int kSplitGemmDepth = 32;     ///< of a stage: 128 bytes, the copy engine's swizzle
inline constexpr int kSplitGemmAlignment = 4;  ///< floats: 16 bytes, the copy engine's grain

/// One operand: a batch of matrices with `depth` contiguous, or rows (columns) contiguous.
struct SplitGemmOperand {
  bool deep;       ///< neighbours along the depth are neighbours in memory
  int64_t extent;  ///< rows, or columns
  int64_t pitch;   ///< floats between lines
  int64_t batch;   ///< floats between matrices; 0 repeats one
};

struct SplitGemmPlan {
  bool valid = false;
  /// Operands that the copy engine cannot fetch where they lie: they are first copied, to lines that begin at multiples
  /// of 16 bytes (kSplitGemmAlignment floats), matrix after matrix without gaps.
  bool copies_a = false, copies_b = false;
  bool swapped = false;
  int tile_rows = 0, tile_columns = 0;
  SplitGemmOperand rows{}, columns{};
  int64_t depth = 0, batch = 0;
  int64_t row_step = 0, column_step = 0, batch_step = 0;  ///< of the target
  int64_t row_tiles = 0, column_tiles = 0;
  int64_t splits = 1;  ///< of the depth; each sums to a workspace of its own
  int64_t stages = 0;  ///< of the whole depth
  int64_t tiles = 0;   ///< of all matrices and splits
  std::size_t workspace_bytes = 0;
  double milliseconds = 0;  ///< by the cost model
};

/// A plan for `problem`, invalid where the kernel has none: an extent of 2^31 or more, a copy of more than 1 GiB.
SplitGemmPlan plan_split_gemm(const GemmProblem& problem, const float* a, const float* b, int multiprocessors);

}  // namespace halo::cuda
