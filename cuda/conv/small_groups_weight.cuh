// backward_weight of convolutions with few channels a group.
//
// As a matrix product: rows are (tap, source channel) pairs, columns result channels, and the depth is the positions.
// Each warp keeps its rows and columns in registers while the block walks over tiles of positions, so that the operands
// are read once a set of weights. Warps that divide the positions are added up in float64 at the end, blocks by
// ordered_sum.cuh.
#pragma once

#include "small_groups_tile.cuh"

namespace halo::cuda::conv::small_groups {

inline constexpr int kWeightThreads = 256;
inline constexpr int kWeightPromoteEvery = 2;

/// Copies tile `index` (over the batch) of both operands into shared memory.
template <class T>
__device__ __forceinline__ void fill_weight_tiles(float* x_tile, float* y_tile, const WeightPlan& plan,
                                                  const WeightArguments<T>& arguments, int group, int first_channel,
                                                  uint32_t index) {
  const GroupProblem& p = plan.problem;
  TileSource<T> x, y;
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    uint32_t at;
    index = plan.tiles[axis].divide(index, at);
    y.first[axis] = static_cast<int>(at) * plan.y.positions[axis];
    x.first[axis] = y.first[axis] * p.step[axis] + p.origin[axis];
    x.extents[axis] = p.source[axis];
    y.extents[axis] = p.result[axis];
  }
  const int64_t image_group = int64_t{index} * p.groups + group;
  x.plane = int64_t{p.source[0]} * p.source[1] * p.source[2];
  y.plane = int64_t{p.result[0]} * p.result[1] * p.result[2];
  x.data = arguments.x + (image_group * p.source_channels + first_channel) * x.plane;
  y.data = arguments.y + image_group * p.result_channels * y.plane;
  x.channels = plan.set_channels;
  y.channels = p.result_channels;
  x.step = p.step[2];
  y.step = 1;
  fill_tile(x_tile, plan.x, x, plan.set_channels);
  fill_tile(y_tile, plan.y, y, plan.column_groups * plan.column_tiles * 8);
}

/// Products of 8 positions, added to `part`.
template <bool Split, int RowTiles, int ColumnTiles>
__device__ __forceinline__ void multiply_positions(float (&part)[RowTiles][ColumnTiles][4], const float* x,
                                                   const int (&offsets)[RowTiles][2], const float* y, int y_pitch) {
  Operand<2, Split> b[ColumnTiles];
#pragma unroll
  for (int n = 0; n < ColumnTiles; ++n) {
    b[n].set(0, y[n * 8 * y_pitch]);
    b[n].set(1, y[n * 8 * y_pitch + 4]);
  }
  Operand<4, Split> a[RowTiles];
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
    a[m].set(0, x[offsets[m][0]]);
    a[m].set(1, x[offsets[m][1]]);
    a[m].set(2, x[offsets[m][0] + 4]);
    a[m].set(3, x[offsets[m][1] + 4]);
  }
  multiply_tiles<Split>(part, a, b);
}

template <class T, bool Split, int RowTiles, int ColumnTiles>
__global__ void __launch_bounds__(kWeightThreads, 2)
    weight_kernel(const __grid_constant__ WeightPlan plan, const __grid_constant__ WeightArguments<T> arguments) {
  extern __shared__ __align__(16) float shared[];
  constexpr int kSums = RowTiles * ColumnTiles * 4;  // of a lane
  const GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int y_channels = plan.column_groups * ColumnTiles * 8;
  const int x_words = plan.set_channels * plan.x.channel_pitch;
  const int buffer_words = x_words + y_channels * plan.y.channel_pitch;

  uint32_t block = blockIdx.x;
  const uint32_t split = block % static_cast<unsigned>(plan.splits);
  block /= static_cast<unsigned>(plan.splits);
  const int set = static_cast<int>(block % static_cast<unsigned>(plan.sets));
  const int group = static_cast<int>(block / static_cast<unsigned>(plan.sets));
  const int items = plan.row_groups * plan.column_groups;
  const int items_here = plan.warps / plan.position_splits;
  const int first_item = set % plan.item_sets * items_here;
  const int first_channel = set / plan.item_sets * plan.set_channels;
  const int item = first_item + warp / plan.position_splits;
  const int row_group = item % plan.row_groups;
  const int column_group = item / plan.row_groups;

  // Word offsets of this lane's rows in the tile of x, those of rows g and g + 8 of each row tile.
  int offsets[RowTiles][2];
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min((row_group * RowTiles + m) * 16 + half * 8 + lane / 4, plan.rows - 1);
      const int channel = row % plan.set_channels;
      const int tap = row / plan.set_channels;
      const int column = p.taps[2].offset[0][tap % p.kernel[2]];
      const int height = p.taps[1].offset[0][tap / p.kernel[2] % p.kernel[1]];
      const int depth = p.taps[0].offset[0][tap / p.tap_pitch[0]];
      offsets[m][half] = channel * plan.x.channel_pitch + (depth * plan.x.extent[1] + height) * plan.x.row_pitch +
                         column % p.step[2] * plan.x.remainder_pitch + column / p.step[2] + lane % 4;
    }
  }

  float sums[RowTiles][ColumnTiles][4] = {};
  const int steps = plan.y.positions[0] * plan.y.positions[1] * plan.y.positions[2] / 8;
  const int tiles = static_cast<int>(plan.tile_count);
  const int stride = plan.splits;
  if (plan.buffers == 2 && static_cast<int>(split) < tiles) {
    fill_weight_tiles(shared, shared + x_words, plan, arguments, group, first_channel, split);
  }
  for (int tile = static_cast<int>(split), turn = 0; tile < tiles; tile += stride, ++turn) {
    float* x_tile = shared + (plan.buffers == 2 ? turn % 2 * buffer_words : 0);
    if (plan.buffers == 1) {
      fill_weight_tiles(x_tile, x_tile + x_words, plan, arguments, group, first_channel, static_cast<uint32_t>(tile));
      device::copy_async_wait<0>();
    } else if (tile + stride < tiles) {
      float* next = shared + (turn + 1) % 2 * buffer_words;
      fill_weight_tiles(next, next + x_words, plan, arguments, group, first_channel,
                        static_cast<uint32_t>(tile + stride));
      device::copy_async_wait<1>();
    } else {
      device::copy_async_wait<0>();
    }
    __syncthreads();

    const float* y_lane =
        x_tile + x_words + (column_group * ColumnTiles * 8 + lane / 4) * plan.y.channel_pitch + lane % 4;
    const auto multiply_step = [&](float(&part)[RowTiles][ColumnTiles][4], int step) {
      uint32_t w, h;
      const uint32_t d = plan.by_plane.divide(plan.by_row.divide(static_cast<uint32_t>(step), w), h);
      const int row = static_cast<int>(d) * p.step[0] * plan.x.extent[1] + static_cast<int>(h) * p.step[1];
      multiply_positions<Split>(part, x_tile + row * plan.x.row_pitch + static_cast<int>(w) * 8, offsets,
                                y_lane + step * 8, plan.y.channel_pitch);
    };
    if (item < items) {
      const int apart = plan.position_splits;
      int step = warp % apart;
      for (; step + (kWeightPromoteEvery - 1) * apart < steps; step += kWeightPromoteEvery * apart) {
        float part[RowTiles][ColumnTiles][4] = {};
#pragma unroll
        for (int k = 0; k < kWeightPromoteEvery; ++k) multiply_step(part, step + k * apart);
        promote(sums, part);
      }
      if (step < steps) {
        float part[RowTiles][ColumnTiles][4] = {};
#pragma unroll 1
        for (; step < steps; step += apart) multiply_step(part, step);
        promote(sums, part);
      }
    }
    __syncthreads();  // the tile may be overwritten
  }

  // The warps of one set of weights, added up in float64. [warp][kSums][lane]
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < ColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) shared[(warp * kSums + (m * ColumnTiles + n) * 4 + i) * 32 + lane] = sums[m][n][i];
    }
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < items_here * kSums * 32; e += static_cast<int>(blockDim.x)) {
    const int slot = e / (kSums * 32);
    const int at = e % (kSums * 32);
    const int from = at % 32, i = at / 32 % 4, n = at / 128 % ColumnTiles, m = at / 128 / ColumnTiles;
    const int of_item = first_item + slot;
    const int row = (of_item % plan.row_groups * RowTiles + m) * 16 + from / 4 + i / 2 * 8;
    const int column = (of_item / plan.row_groups * ColumnTiles + n) * 8 + from % 4 * 2 + i % 2;
    if (of_item >= items || row >= plan.rows || column >= p.result_channels) continue;
    double sum = 0;
    for (int w = 0; w < plan.position_splits; ++w) {
      sum += shared[((slot * plan.position_splits + w) * kSums) * 32 + at];
    }
    const int64_t weight = group * p.weight_group + column * p.weight_result +
                           (first_channel + row % plan.set_channels) * p.weight_source + row / plan.set_channels;
    arguments.partials[weight * plan.splits + split] = sum;
  }
}

}  // namespace halo::cuda::conv::small_groups
