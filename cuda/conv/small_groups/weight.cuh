// backward_weight of convolutions with few channels a group.
//
// As a matrix product: rows are (tap, source channel) pairs, columns result channels, and the depth is the positions.
// Each warp keeps its rows and columns in registers while the block walks over tiles of positions, so that the operands
// are read once a set of weights. Warps that divide the positions are added up in float64 at the end, blocks by
// ordered_sum.cuh.
#pragma once

#include "tile.cuh"

namespace halo::cuda::conv::small_groups {

inline constexpr int kWeightThreads = 512;
inline constexpr int kWeightPromoteEvery = 2;

/// Where the boxes of tile `index` (over the batch) of both operands lie.
template <class T>
struct WeightSources {
  BoxPlace<T> x, y;

  __device__ WeightSources(const WeightPlan& plan, const WeightArguments<T>& arguments, int group, int first_channel,
                           uint32_t index) {
    const GroupProblem& p = plan.problem;
    const TilePlace place = tile_place(plan.tiles, plan.y.positions, index);
    const int64_t image_group = place.image * p.groups + group;
    x = tile_source(p, place, arguments.x, int64_t{group} * p.source_channels + first_channel, plan.set_channels);
    y = {arguments.y + image_group * p.result_channels * p.result_rows.plane_pitch +
             place.q0[0] * p.result_rows.outer_pitch + place.q0[1] * p.result_rows.inner_pitch + place.q0[2],
         arguments.y + p.result_rows.elements,
         p.result_channels,
         place.q0[0],
         place.q0[1],
         place.q0[2]};
  }
};

/// Products of 8 positions, added to `part`.
template <bool Split, int Step, class T, int RowTiles, int ColumnTiles>
__device__ __forceinline__ void multiply_positions(float (&part)[RowTiles][ColumnTiles][4], const T* x,
                                                   const int (&offsets)[RowTiles][2], int any_step, const T* y,
                                                   int y_pitch) {
  const int four = 4 * (Step == 0 ? any_step : Step);
  Operand<2, Split> b[ColumnTiles];
#pragma unroll
  for (int n = 0; n < ColumnTiles; ++n) {
    b[n].set(0, device::to_accumulator(y[n * 8 * y_pitch]));
    b[n].set(1, device::to_accumulator(y[n * 8 * y_pitch + 4]));
  }
  Operand<4, Split> a[RowTiles];
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
    a[m].set(0, device::to_accumulator(x[offsets[m][0]]));
    a[m].set(1, device::to_accumulator(x[offsets[m][1]]));
    a[m].set(2, device::to_accumulator(x[offsets[m][0] + four]));
    a[m].set(3, device::to_accumulator(x[offsets[m][1] + four]));
  }
  multiply_tiles<false, Split>(part, a, b);
}

/// Step: as in gather_kernel.
template <class T, bool Split, int Step, int RowTiles, int ColumnTiles>
__global__ void __launch_bounds__(kWeightThreads)
    weight_kernel(const __grid_constant__ WeightPlan plan, const __grid_constant__ WeightArguments<T> arguments) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint64_t copied[2];
  constexpr int kSums = RowTiles * ColumnTiles * 4;  // of a lane
  const GroupProblem& p = plan.problem;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const RowBox &x_box = plan.x.box, &y_box = plan.y.box;
  const TilePitch<T> x_pitch(x_box), y_pitch(y_box);
  const int buffer_bytes = x_box.bytes + y_box.bytes;

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
      offsets[m][half] =
          channel * x_pitch.channel + depth * x_pitch.depth + height * x_pitch.height + column + lane % 4 * p.step[2];
    }
  }

  float sums[RowTiles][ColumnTiles][4] = {};
  const int steps = plan.y.positions[0] * plan.y.positions[1] * plan.y.positions[2] / 8;
  const int tiles = static_cast<int>(plan.tile_count);
  const int stride = plan.splits;

  const auto barrier = static_cast<uint32_t>(__cvta_generic_to_shared(copied));
  box_barrier_init(barrier);
  box_barrier_init(barrier + 8);
  if (y_box.planes > p.result_channels) clear_tiles(shared, plan.buffers * buffer_bytes);
  __syncthreads();
  // Tile number `turn` of this block, if there is one, on its way to its buffer.
  const auto start = [&](int turn) {
    const int tile = static_cast<int>(split) + turn * stride;
    if (tile >= tiles) return false;
    const WeightSources<T> sources(plan, arguments, group, first_channel, static_cast<uint32_t>(tile));
    const int buffer = turn % plan.buffers;
    start_box(shared + buffer * buffer_bytes, x_box, p.source_rows, sources.x, barrier + buffer * 8);
    start_box(shared + buffer * buffer_bytes + x_box.bytes, y_box, p.result_rows, sources.y, barrier + buffer * 8);
    box_arrive(barrier + buffer * 8);
    return true;
  };
  start(0);
  for (int tile = static_cast<int>(split), turn = 0; tile < tiles; tile += stride, ++turn) {
    const int buffer = turn % plan.buffers;
    unsigned char* const here = shared + buffer * buffer_bytes;
    if (plan.buffers == 2 && start(turn + 1)) {
      box_wait<1>(barrier + buffer * 8, turn / 2);
    } else {
      box_wait<0>(barrier + buffer * 8, turn / plan.buffers);
    }
    const WeightSources<T> sources(plan, arguments, group, first_channel, static_cast<uint32_t>(tile));
    const bool wrote_x = finish_box(here, x_box, p.source_rows, sources.x);
    const bool wrote_y = finish_box(here + x_box.bytes, y_box, p.result_rows, sources.y);
    if (wrote_x || wrote_y) __syncthreads();

    const T* const x_tile = reinterpret_cast<const T*>(here + box_shift(sources.x));
    const T* const y_lane = reinterpret_cast<const T*>(here + x_box.bytes + box_shift(sources.y)) +
                            (column_group * ColumnTiles * 8 + lane / 4) * y_pitch.channel + lane % 4;
    const auto multiply_step = [&](float(&part)[RowTiles][ColumnTiles][4], int step) {
      uint32_t w, h;
      const uint32_t d = plan.by_plane.divide(plan.by_row.divide(static_cast<uint32_t>(step), w), h);
      const auto depth = static_cast<int>(d), height = static_cast<int>(h), column = static_cast<int>(w) * 8;
      multiply_positions<Split, Step>(
          part, x_tile + depth * p.step[0] * x_pitch.depth + height * p.step[1] * x_pitch.height + column * p.step[2],
          offsets, p.step[2], y_lane + depth * y_pitch.depth + height * y_pitch.height + column, y_pitch.channel);
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
    if (plan.buffers == 1) start(turn + 1);
  }

  // The warps of one set of weights, added up in float64. [warp][kSums][lane]
  float* const all_sums = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < ColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) all_sums[(warp * kSums + (m * ColumnTiles + n) * 4 + i) * 32 + lane] = sums[m][n][i];
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
      sum += all_sums[((slot * plan.position_splits + w) * kSums) * 32 + at];
    }
    const int64_t weight = group * p.weight_group + column * p.weight_result +
                           (first_channel + row % plan.set_channels) * p.weight_source + row / plan.set_channels;
    arguments.partials[weight * plan.splits + split] = sum;
  }
}

}  // namespace halo::cuda::conv::small_groups
