// Forward and backward_input of convolutions with few channels a group.
//
// A block owns a box of positions of one image and group. It copies the source it needs into shared memory once, as
// float32, and each warp multiplies 16-position by 8-channel tiles on the tensor cores: the A operand is gathered from
// the tile at the offset of each tap, the B operand is the weight. A unit of the sum is one tap of four source
// channels; a product takes two units. All width phases of a position are finished by the same warp, which then writes
// whole runs of the result through its own staging buffer.
#pragma once

#include "../device/activation.cuh"
#include "small_groups_tile.cuh"

namespace halo::cuda::conv::small_groups {

inline constexpr int kGatherThreads = 256;
/// Products whose sum the tensor core keeps, with its coarser rounding, before it is added in float32.
inline constexpr int kPromoteEvery = 2;

/// One unit: word offsets in the source tile and in the weights.
struct Unit {
  int source;
  int weight;
};

/// The unit table of a block, phase by phase (width fastest), each phase padded to an even count by a unit whose weight
/// is zero.
template <class T>
__device__ void build_units(Unit* units, int* starts, const GatherPlan& plan, int zero_weight) {
  const GroupProblem& p = plan.problem;
  int start = 0;
  for (int d = 0; d < p.phases[0]; ++d) {
    for (int h = 0; h < p.phases[1]; ++h) {
      for (int w = 0; w < p.phases[2]; ++w) {
        const int heights = p.taps[1].count[h], widths = p.taps[2].count[w];
        const int count = p.taps[0].count[d] * heights * widths * plan.channel_blocks;
        for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
          const int block = i % plan.channel_blocks;
          int tap = i / plan.channel_blocks;
          const int at_w = tap % widths;
          tap /= widths;
          const int at_h = tap % heights;
          const int at_d = tap / heights;
          const int flat = p.taps[0].tap[d][at_d] * p.tap_pitch[0] + p.taps[1].tap[h][at_h] * p.tap_pitch[1] +
                           p.taps[2].tap[w][at_w];
          const int row = p.taps[0].offset[d][at_d] * plan.tile.extent[1] + p.taps[1].offset[h][at_h];
          const int column = p.taps[2].offset[w][at_w];
          const int step = p.step[2];
          units[start + i] = {block * kChannelBlock * plan.tile.channel_pitch + row * plan.tile.row_pitch +
                                  column % step * plan.tile.remainder_pitch + column / step,
                              (flat * plan.channel_blocks + block) * plan.result_tiles * 32};
        }
        if (threadIdx.x == 0) {
          starts[(d * p.phases[1] + h) * p.phases[2] + w] = start;
          if (count % 2 != 0) units[start + count] = {0, zero_weight};
        }
        start += count + count % 2;
      }
    }
  }
}

/// Weights as the B operand reads them: [tap][channel block][result tile][lane], lane 4 * result + channel; then zeros
/// for the unit that pads an odd count.
template <class T>
__device__ void fill_weights(float* weights, const GatherPlan& plan, const T* weight) {
  const GroupProblem& p = plan.problem;
  const int taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
  const int words = taps * plan.channel_blocks * plan.result_tiles * 32;
  for (int i = static_cast<int>(threadIdx.x); i < words + plan.result_tiles * 32; i += static_cast<int>(blockDim.x)) {
    const int lane = i % 32;
    int rest = i / 32;
    const int result = rest % plan.result_tiles * 8 + lane / 4;
    rest /= plan.result_tiles;
    const int source = rest % plan.channel_blocks * kChannelBlock + lane % 4;
    const int tap = rest / plan.channel_blocks;
    const bool exists = i < words && result < p.result_channels && source < p.source_channels;
    weights[i] =
        exists ? device::to_accumulator(weight[result * p.weight_result + source * p.weight_source + tap]) : 0.0f;
  }
}

/// Replaces results that the split operands made infinite or NaN by plain float32 sums. The warp shares the work.
/// `tile` and `weights` are those of the warp's first position and first result channel.
template <int RowTiles>
__device__ __noinline__ void repair(float* stage, int stage_pitch, int run, int phases, int phase, int channels,
                                    const Unit* units, int count, const float* tile, int channel_pitch,
                                    const float* weights) {
  for (int at = static_cast<int>(threadIdx.x % 32); at < channels * RowTiles * kSegment; at += 32) {
    const int channel = at / (RowTiles * kSegment);
    const int position = at % (RowTiles * kSegment);
    float& value = stage[channel * stage_pitch + position / kSegment * run + position % kSegment * phases + phase];
    if (fabsf(value) < INFINITY) continue;
    float sum = 0;
    for (int u = 0; u < count; ++u) {
      for (int c = 0; c < kChannelBlock; ++c) {
        sum =
            fmaf(tile[units[u].source + position + c * channel_pitch], weights[units[u].weight + channel * 4 + c], sum);
      }
    }
    value = sum;
  }
}

/// The corner of tile `index` of the batch, and the image it lies in.
struct TilePlace {
  int64_t image;
  int q0[3];
};

__device__ __forceinline__ TilePlace tile_place(const FastDivide (&tiles)[3], const int (&positions)[3],
                                                uint32_t index) {
  TilePlace place;
#pragma unroll
  for (int axis = 2; axis >= 0; --axis) {
    uint32_t at;
    index = tiles[axis].divide(index, at);
    place.q0[axis] = static_cast<int>(at) * positions[axis];
  }
  place.image = index;
  return place;
}

template <class T>
__device__ __forceinline__ void fill_gather_tile(float* tile, const GatherPlan& plan, const T* data, int group,
                                                 int64_t index) {
  const GroupProblem& p = plan.problem;
  const TilePlace place = tile_place(plan.tiles, plan.tile.positions, static_cast<uint32_t>(index));
  TileSource<T> source;
  source.plane = int64_t{p.source[0]} * p.source[1] * p.source[2];
  source.data = data + (place.image * p.groups + group) * p.source_channels * source.plane;
  source.channels = p.source_channels;
  source.step = p.step[2];
#pragma unroll
  for (int axis = 0; axis < 3; ++axis) {
    source.extents[axis] = p.source[axis];
    source.first[axis] = place.q0[axis] * p.step[axis] + p.origin[axis];
  }
  fill_tile(tile, plan.tile, source, plan.channel_blocks * kChannelBlock);
}

/// Products of one pair of units, added to `part`. The row tiles of a warp are neighbours in the tile.
template <bool Split, int RowTiles, int ColumnTiles>
__device__ __forceinline__ void multiply_units(float (&part)[RowTiles][ColumnTiles][4], const Unit* pair,
                                               const float* tile, const float* weights) {
  const int4 units = *reinterpret_cast<const int4*>(pair);  // two units
  const float* one = tile + units.x;
  const float* two = tile + units.z;
  Operand<2, Split> b[ColumnTiles];
#pragma unroll
  for (int n = 0; n < ColumnTiles; ++n) {
    b[n].set(0, weights[units.y + n * 32]);
    b[n].set(1, weights[units.w + n * 32]);
  }
  Operand<4, Split> a[RowTiles];
#pragma unroll
  for (int j = 0; j < RowTiles; ++j) {
    a[j].set(0, one[j * kSegment]);
    a[j].set(1, one[j * kSegment + 8]);
    a[j].set(2, two[j * kSegment]);
    a[j].set(3, two[j * kSegment + 8]);
  }
  multiply_tiles<Split>(part, a, b);
}

/// Sums of one phase over all its units.
template <bool Split, int RowTiles, int ColumnTiles>
__device__ __forceinline__ void sum_units(float (&sums)[RowTiles][ColumnTiles][4], const Unit* units, int count,
                                          const float* tile, const float* weights) {
  int done = 0;
  for (; done + 2 * kPromoteEvery <= count; done += 2 * kPromoteEvery) {
    float part[RowTiles][ColumnTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kPromoteEvery; ++k) multiply_units<Split>(part, units + done + 2 * k, tile, weights);
    promote(sums, part);
  }
  if (done < count) {
    float part[RowTiles][ColumnTiles][4] = {};
#pragma unroll 1
    for (; done < count; done += 2) multiply_units<Split>(part, units + done, tile, weights);
    promote(sums, part);
  }
}

template <class T, bool Split, int RowTiles, int ColumnTiles>
__global__ void __launch_bounds__(kGatherThreads, 2)
    gather_kernel(const __grid_constant__ GatherPlan plan, const __grid_constant__ GatherArguments<T> arguments) {
  extern __shared__ __align__(16) float shared[];
  const GroupProblem& p = plan.problem;
  const GroupTile& shape = plan.tile;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  const int taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
  const int weight_words = taps * plan.channel_blocks * plan.result_tiles * 32;
  const int phases = p.phases[0] * p.phases[1] * p.phases[2];
  const int tile_words = plan.channel_blocks * kChannelBlock * shape.channel_pitch;  // a multiple of 32
  const int run = kSegment * p.phases[2];                                            // result columns of one segment
  const int stage_pitch = RowTiles * run + 4;  // 4 modulo 16: pairs of channels fall on different banks

  float* weights = shared + plan.buffers * tile_words;  // fill_weights
  Unit* units = reinterpret_cast<Unit*>(weights + weight_words + plan.result_tiles * 32);
  int* starts = reinterpret_cast<int*>(units + plan.units);  // [phases]
  float* stage = reinterpret_cast<float*>(starts + (phases + 3) / 4 * 4) + warp * (ColumnTiles * 8 * stage_pitch);

  const int group = static_cast<int>(blockIdx.x) / plan.slots;
  const int64_t slot = static_cast<int>(blockIdx.x) % plan.slots;
  const int64_t result_plane = int64_t{p.result[0]} * p.result[1] * p.result[2];

  if (plan.buffers == 2 && slot < plan.tile_count) fill_gather_tile(shared, plan, arguments.source, group, slot);
  fill_weights(weights, plan, arguments.weight + group * p.weight_group);
  build_units<T>(units, starts, plan, weight_words);

  const int column_groups = plan.result_tiles / ColumnTiles;
  const int items = plan.row_groups * column_groups * p.phases[0] * p.phases[1];
  int turn = 0;
  for (int64_t index = slot; index < plan.tile_count; index += plan.slots, ++turn) {
    const float* tile = shared + (plan.buffers == 2 ? turn % 2 * tile_words : 0);
    if (plan.buffers == 1) {
      fill_gather_tile(shared, plan, arguments.source, group, index);
      device::copy_async_wait<0>();
    } else if (index + plan.slots < plan.tile_count) {
      fill_gather_tile(shared + (turn + 1) % 2 * tile_words, plan, arguments.source, group, index + plan.slots);
      device::copy_async_wait<1>();
    } else {
      device::copy_async_wait<0>();
    }
    __syncthreads();

    const TilePlace place = tile_place(plan.tiles, shape.positions, static_cast<uint32_t>(index));
    T* result = arguments.result + (place.image * p.groups + group) * p.result_channels * result_plane;
    for (int item = warp; item < items; item += warps) {
      const int row_group = item % plan.row_groups;
      const int column_group = item / plan.row_groups % column_groups;
      const int outer_phase = item / plan.row_groups / column_groups;
      const int phase_d = outer_phase / p.phases[1];
      const int phase_h = outer_phase % p.phases[1];
      uint32_t w, h;
      const uint32_t d = plan.by_height.divide(plan.by_row.divide(static_cast<uint32_t>(row_group), w), h);
      const int q_d = static_cast<int>(d), q_h = static_cast<int>(h), q_w = static_cast<int>(w) * RowTiles * kSegment;
      const float* base =
          tile + (q_d * p.step[0] * shape.extent[1] + q_h * p.step[1]) * shape.row_pitch + q_w + lane / 4;
      const int channel0 = column_group * ColumnTiles * 8;
      const int channels = min(ColumnTiles * 8, p.result_channels - channel0);

      for (int phase_w = 0; phase_w < p.phases[2]; ++phase_w) {
        const int count =
            p.taps[0].count[phase_d] * p.taps[1].count[phase_h] * p.taps[2].count[phase_w] * plan.channel_blocks;
        const Unit* unit = units + starts[outer_phase * p.phases[2] + phase_w];
        float sums[RowTiles][ColumnTiles][4] = {};
        sum_units<Split>(sums, unit, count, base + lane % 4 * shape.channel_pitch, weights + channel0 * 4 + lane);

        float* staged = stage + lane % 4 * 2 * stage_pitch + lane / 4 * p.phases[2] + phase_w;
        bool finite = true;
#pragma unroll
        for (int n = 0; n < ColumnTiles; ++n) {
#pragma unroll
          for (int j = 0; j < RowTiles; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              finite = finite && fabsf(sums[j][n][i]) < INFINITY;
              staged[(n * 8 + i % 2) * stage_pitch + j * run + i / 2 * 8 * p.phases[2]] = sums[j][n][i];
            }
          }
        }
        if (!__all_sync(0xffffffffu, finite)) {
          __syncwarp();
          repair<RowTiles>(stage, stage_pitch, run, p.phases[2], phase_w, channels, unit, count, base - lane / 4,
                           shape.channel_pitch, weights + channel0 * 4);
        }
      }
      __syncwarp();

      // The run of each channel, 32 neighbouring results at a time.
      const int at_d = (place.q0[0] + q_d) * p.phases[0] + phase_d;
      const int at_h = (place.q0[1] + q_h) * p.phases[1] + phase_h;
      const int at_w = (place.q0[2] + q_w) * p.phases[2];
      const int columns = at_d < p.result[0] && at_h < p.result[1] ? min(RowTiles * run, p.result[2] - at_w) : 0;
      T* row = result + channel0 * result_plane + (int64_t{at_d} * p.result[1] + at_h) * p.result[2] + at_w;
      const T* bias = arguments.bias ? arguments.bias + int64_t{group} * p.result_channels + channel0 : nullptr;
      const bool plain =
          bias == nullptr && arguments.activation.kind == ActivationKind::None && channels == ColumnTiles * 8;
      for (int e = lane; e < columns; e += 32) {
        T* out = row + e;
        const float* staged = stage + e;
        if (plain) {
#pragma unroll
          for (int c = 0; c < ColumnTiles * 8; ++c, out += result_plane, staged += stage_pitch) {
            *out = device::from_accumulator<T>(*staged);
          }
          continue;
        }
#pragma unroll 1
        for (int c = 0; c < channels; ++c, out += result_plane, staged += stage_pitch) {
          const float shifted = bias ? *staged + device::to_accumulator(bias[c]) : *staged;
          *out = device::from_accumulator<T>(device::apply_activation(arguments.activation, shifted));
        }
      }
      __syncwarp();  // the stage may be overwritten
    }
    __syncthreads();  // the tile may be overwritten
  }
}

}  // namespace halo::cuda::conv::small_groups
