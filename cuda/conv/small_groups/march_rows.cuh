// What a thread of march.cu reads on its way down two columns of results: each step brings it one row of the source,
// its channels and the columns that the taps read. The loads of several steps are on their way at once; neighbours come
// from the first cache.
#pragma once

#include "../../device/number.cuh"
#include "march.h"

namespace halo::cuda::conv::small_groups {

/// What a block computes: the first channels and taps of its tile, of one group.
struct MarchTile {
  uint32_t split;
  int group, result, source, tap[3];

  __device__ MarchTile(const MarchPlan& plan, const MarchShape& shape, uint32_t block) {
    uint32_t depth, height, width, source_tile, result_tile;
    const auto splits = static_cast<uint32_t>(plan.splits);
    split = block % splits;
    block = plan.tap_tiles[2].divide(block / splits, width);
    block = plan.tap_tiles[1].divide(block, height);
    block = plan.tap_tiles[0].divide(block, depth);
    block = plan.source_tiles.divide(block, source_tile);
    block = plan.result_tiles.divide(block, result_tile);
    group = static_cast<int>(block);
    result = static_cast<int>(result_tile) * shape.results;
    source = static_cast<int>(source_tile) * shape.sources;
    tap[0] = static_cast<int>(depth);
    tap[1] = static_cast<int>(height) * shape.height;
    tap[2] = static_cast<int>(width) * shape.width;
  }
};

/// Where strip `index` lies in the result: that of its first column.
struct MarchItem {
  int64_t image;
  int depth, row, column;
  int rows;  ///< that exist

  __device__ MarchItem(const MarchPlan& plan, int64_t index) {
    uint32_t of_columns, of_strips, of_depths;
    const uint32_t above = plan.strips.divide(plan.columns.divide(static_cast<uint32_t>(index), of_columns), of_strips);
    image = plan.depths.divide(above, of_depths);
    depth = static_cast<int>(of_depths);
    column = static_cast<int>(of_columns) * kMarchColumns;
    row = static_cast<int>(of_strips) * plan.strip;
    rows = min(plan.strip, plan.result.extent[1] - row);
  }
  __device__ int64_t position(const MarchSide& result) const {
    return (int64_t{depth} * result.extent[1] + row) * result.extent[2] + column;
  }
};

/// One position of `Channels` neighbouring channels. Channels that do not exist repeat the last one.
template <class T, int Channels>
struct MarchPlanes {
  T* at[Channels];

  __device__ MarchPlanes(T* tensor, const MarchSide& side, int64_t image_group, int first, int64_t position) {
    T* const group = tensor + image_group * side.channels * side.plane + position;
#pragma unroll
    for (int c = 0; c < Channels; ++c) at[c] = group + min(first + c, side.channels - 1) * side.plane;
  }
  __device__ void advance(int elements) {
#pragma unroll
    for (int c = 0; c < Channels; ++c) at[c] += elements;
  }
};

/// What was loaded, as numbers. Not before this: a conversion right behind a 16-bit load waits for it.
template <class T, int Channels, int Columns>
__device__ __forceinline__ void convert(T (&loaded)[Channels][Columns], float (&numbers)[Channels][Columns]) {
#pragma unroll
  for (int c = 0; c < Channels; ++c) {
#pragma unroll
    for (int k = 0; k < Columns; ++k) {
      if constexpr (sizeof(T) == 2) asm volatile("" : "+h"(loaded[c][k].bits));
      numbers[c][k] = device::to_accumulator(loaded[c][k]);
    }
  }
}

/// The rows of the source that go with a strip. Width: columns that the taps of all columns read.
template <class T, int Sources, int Height, int Width>
struct MarchWindows {
  int depth, row, column, steps;
  bool exists[Width];
  MarchPlanes<const T, Sources> from;

  __device__ MarchWindows(const MarchPlan& plan, const T* source, const MarchTile& tile, const MarchItem& item)
      : depth(item.depth * plan.step[0] + tile.tap[0] * plan.dilation_depth + plan.origin[0]),
        row(item.row * plan.step[1] + tile.tap[1] + plan.origin[1]),
        column(item.column + tile.tap[2] + plan.origin[2]),
        steps(item.rows + Height - 1),
        from(source, plan.source, item.image * plan.groups + tile.group, tile.source,
             (int64_t{depth} * plan.source.extent[1] + row) * plan.source.extent[2] + column) {
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      exists[k] = static_cast<unsigned>(column + k) < static_cast<unsigned>(plan.source.extent[2]) &&
                  static_cast<unsigned>(depth) < static_cast<unsigned>(plan.source.extent[0]);
    }
  }

  /// The row of step `step`, zeros for what does not exist.
  __device__ __forceinline__ void load(const MarchPlan& plan, int step, T (&window)[Sources][Width]) {
    const bool inside =
        step < steps && static_cast<unsigned>(row + step * plan.step[1]) < static_cast<unsigned>(plan.source.extent[1]);
#pragma unroll
    for (int c = 0; c < Sources; ++c) {
#pragma unroll
      for (int k = 0; k < Width; ++k) {
        window[c][k] = inside && exists[k] ? from.at[c][k] : T{};
      }
    }
    from.advance(plan.step[1] * plan.source.extent[2]);
  }
};

}  // namespace halo::cuda::conv::small_groups
