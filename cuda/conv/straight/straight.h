// Convolutions of few channels straight from global memory: what the host decides and the kernels of
// kernel.cuh and weight.cuh read.
//
// Forward and backward_input are one operation, as small_groups/small_groups.h describes it. A warp makes 32 or 64
// neighbouring positions q of one row, all phases of the width, times 32 or 64 result channels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../device/fast_divide.h"
#include "../small_groups/small_groups.h"

namespace halo::cuda::conv::straight {

inline constexpr int kChunk = 16;  ///< source channels of a unit of the sum

inline constexpr int kRing = 6;  ///< units of a warp in shared memory, with packs
inline constexpr int kRingBytes = kRing * 2048;

/// Warps of a block, as many as registers allow.
constexpr int most_warps(int column_tiles, bool packs, std::size_t element_size) {
  if (packs && element_size == 2) return column_tiles == 8 ? 8 : 12;
  return column_tiles == 8 ? 12 : 16;
}
/// Positions of a warp.
constexpr int positions(bool packs, std::size_t element_size) { return packs && element_size == 2 ? 64 : 32; }

struct Plan {
  small_groups::GroupProblem problem;
  bool packs = false;     ///< one tap of the width, no stride: 16 bytes of neighbours are one access on both sides
  bool split = false;     ///< float32 in two TF32 parts, three products
  int column_tiles = 8;   ///< 8-channel tiles of a warp
  int column_groups = 1;  ///< warps side by side in the result channels of a block
  int column_blocks = 1;  ///< blocks side by side
  int chunks = 1;         ///< of the source channels
  int most_units = 0;     ///< of a block: taps of its phases times chunks
  int warps = 8;
  int stage_pitch = 0;   ///< elements between channels of a warp's stage; 0 with packs
  int own = 32;          ///< positions from one item to the next: the rest is there for the last 16-byte pieces
  FastDivide row_packs;  ///< 16-byte pieces that begin in an item's own positions
  FastDivide groups, tiles[3];
  bool bends = false;   ///< y = max(y, slope * y)
  bool smooth = false;  ///< another activation
  float slope = 1;
  int64_t items = 0;  ///< for the warps: tiles times column_groups
  int64_t blocks = 0;
  int rows_of_blocks = 1;  ///< blockIdx.y: phases of depth and height, column blocks
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

/// `blocks` is 0 where there is none.
Plan plan_straight(const ConvProblem& problem, const ConvConfig& config);

inline constexpr int kWeightThreads = 256;
inline constexpr int kWeightColumns = 64;        ///< input channels of a block
inline constexpr int kWeightPackPositions = 64;  ///< of a step with packs
inline constexpr int kWeightTaps = 3;            ///< of a block
inline constexpr int kWeightStages = 4;          ///< steps in shared memory with packs
inline constexpr int kTapStages = 3;             ///< without
inline constexpr int kWeightFlush = 16;          ///< steps whose sum the tensor core keeps
// With packs, of rows that are no whole 16 bytes.
inline constexpr int kRunMakers = 16, kRunCopiers = 4;  ///< warps that multiply and copy
inline constexpr int kRunThreads = (kRunMakers + kRunCopiers) * 32;
inline constexpr int kRunMakerRegisters = 104, kRunCopierRegisters = 64;  ///< of 96 that all begin with
inline constexpr int kRunSplits = 2;                                      ///< warps that divide the positions of a step
inline constexpr int kRunPositions = 256;                                 ///< of a step
inline constexpr int kRunPitch = 576;  ///< bytes from row to row: 33 granules, and 64 bytes modulo all banks
inline constexpr int kRunStages = 2;   ///< steps in shared memory
inline constexpr int kRunFlush = 8;    ///< steps whose sum the tensor core keeps
/// Where rows with packs begin behind whole 16 bytes: nowhere, all channels at the same place, or neighbours at
/// different ones, as the sizes of odd planes have it.
enum class Leads { None, Alike, Apart };
/// Output channels of a block.
constexpr int weight_rows(bool packs) { return packs ? 128 : 32; }

/// backward_weight of half types.
struct WeightPlan {
  small_groups::GroupProblem problem;  ///< of the forward pass
  bool packs = false;                  ///< one tap of the width, no stride or padding there
  Leads leads = Leads::None;           ///< with packs
  int shared_step = 0;                 ///< of the width, where its taps are as far apart and it is 1 or 2
  int taps = 1;
  int row_groups = 1, channel_groups = 1, tap_groups = 1;
  FastDivide extents[3];                 ///< of y, the width in steps
  bool engine = false;                   ///< rows come by Hopper's copy engine
  bool y_whole = false;                  ///< rows of y begin and end at whole 16 bytes
  int positions = kWeightPackPositions;  ///< of a step
  int granules = 0;                      ///< 16-byte pieces of a row of x, without packs
  int x_pitch = 0, y_pitch = 0;          ///< bytes, without packs
  int stage_bytes = 0;
  int64_t steps = 0;
  int64_t blocks = 0;  ///< that divide the positions
  int64_t splits = 0;  ///< sums of a weight
  int64_t rows_of_blocks = 1;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

/// The same.
WeightPlan plan_weight(const ConvProblem& problem, const ConvConfig& config);

}  // namespace halo::cuda::conv::straight
