// Small groups in float32 with the source of the next tiles on its way while this one is multiplied.
#pragma once

#include "small_groups.h"

namespace halo::cuda::conv::small_groups {

inline constexpr int kPromoteUnits = 4;  ///< units of 4 products whose sum the tensor core keeps before float32 does

/// A GroupProblem on blocks. A block belongs to one group, or to a set of its result channels, and walks over tiles of
/// all images.
struct RingPlan {
  GroupProblem problem;
  GroupTile tile;
  int warps = 12;  ///< that multiply; TileRing has more
  int tiles_in_ring = 2;
  int chunks = 1;        ///< the depth taps, where the source of each arrives on its own: then at most `warps` items
  int row_tiles = 2;     ///< 16-position tiles a warp works on at once
  int column_tiles = 1;  ///< 8-channel tiles a warp works on at once
  int sets = 1, set_results;  ///< a group's result channels, divided
  int result_tiles;           ///< of a set: ceil(set_results / 8), up to a multiple of column_tiles
  int units;                  ///< of the sums of all phases
  int unit_pitch;             ///< entries of the unit table for each of four products
  int segments;               ///< of kSegment positions in the tile
  int items;                  ///< of a tile: row_tiles segments, column_tiles tiles, one depth and height phase
  int slots;                  ///< blocks of a set
  FastDivide tiles[3];        ///< tiles along each axis
  // Segments of a row and rows of a depth of the tile; segment groups, groups of column tiles and height phases.
  FastDivide by_row, by_height, by_segments, by_column, by_phase;
  int64_t tile_count;  ///< over the batch
  int64_t blocks = 0;
  std::size_t shared_bytes = 0;
  double predicted_ms = 0;
};

/// The plan with the least predicted time for forward or backward_input in float32; `blocks` is 0 if there is none.
RingPlan ring_plan(const ConvProblem& problem, ConvPass pass);

void launch_ring(const RingPlan& plan, const GatherArguments<float>& arguments, const ConvProblem& problem,
                 ConvPass pass, cudaStream_t stream);

}  // namespace halo::cuda::conv::small_groups
