// Forward and backward_input of convolutions with few channels a group.
//
// A block owns a box of positions of one image and group. It copies the source it needs into shared memory once, and
// each warp multiplies 16-position by 8-channel tiles on the tensor cores: the A operand is gathered from
// the tile at the offset of each tap, the B operand is the weight. A unit of the sum is one tap of four source
// channels; a product takes two units. All width phases of a position are finished by the same warp, which then writes
// whole runs of the result through its own staging buffer.
#pragma once

#include "../../device/activation.cuh"
#include "../plain_sum.cuh"
#include "tile.cuh"

namespace halo::cuda::conv::small_groups {

inline constexpr int kGatherThreads = 512;
/// Products whose sum the tensor core keeps, with its coarser rounding, before it is added in float32.
inline constexpr int kPromoteEvery = 2;

/// One unit: byte offsets in the source tile and in the weights.
struct Unit {
  int source;
  int weight;
};

template <class T>
__device__ __forceinline__ const T* ahead(const T* pointer, int bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const unsigned char*>(pointer) + bytes);
}

/// The unit table of a block, phase by phase (width fastest), each phase padded to an even count by a unit whose weight
/// is zero.
template <class T>
__device__ void build_units(Unit* units, int* starts, const GatherPlan& plan, int zero_weight) {
  const GroupProblem& p = plan.problem;
  const TilePitch<T> pitch(plan.tile.box);
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
          const int source = block * kChannelBlock * pitch.channel + p.taps[0].offset[d][at_d] * pitch.depth +
                             p.taps[1].offset[h][at_h] * pitch.height + p.taps[2].offset[w][at_w];
          units[start + i] = {source * static_cast<int>(sizeof(T)),
                              (flat * plan.channel_blocks + block) * plan.result_tiles * 32 * 4};
        }
        if (threadIdx.x == 0) {
          starts[(d * p.phases[1] + h) * p.phases[2] + w] = start;
          if (count % 2 != 0) units[start + count] = {0, zero_weight * 4};
        }
        start += count + count % 2;
      }
    }
  }
}

/// Weights as the B operand reads them, [tap][channel block][result tile][lane] with lane 4 * result + channel, then
/// zeros for the unit that pads an odd count: `words` numbers, their high parts where Split, then as many low parts.
template <bool Split, class T>
__device__ void fill_weights(float* weights, int words, const GatherPlan& plan, const T* weight) {
  const GroupProblem& p = plan.problem;
  const int padding = plan.result_tiles * 32;
  for (int i = static_cast<int>(threadIdx.x); i < words; i += static_cast<int>(blockDim.x)) {
    const int lane = i % 32;
    int rest = i / 32;
    const int result = rest % plan.result_tiles * 8 + lane / 4;
    rest /= plan.result_tiles;
    const int source = rest % plan.channel_blocks * kChannelBlock + lane % 4;
    const int tap = rest / plan.channel_blocks;
    const bool exists = i < words - padding && result < p.result_channels && source < p.source_channels;
    Operand<1, Split> value;
    value.set(
        0, exists ? device::to_accumulator(weight[result * p.weight_result + source * p.weight_source + tap]) : 0.0f);
    weights[i] = __uint_as_float(value.high[0]);
    if constexpr (Split) weights[words + i] = __uint_as_float(value.low[0]);
  }
}

/// Computes those of the staged results that are not finite again, as plain float32 sums: the parts of operands, and
/// zeros that stand for what does not exist, make more of them than there are. The warp shares the work. `image`,
/// `channel`, `flat`: those of the first of `channels` times `columns`.
template <class T>
__device__ __noinline__ void repair(const PlainSumOf<T>& plain, float* stage, int stage_pitch, int channels,
                                    int columns, int64_t image, int channel, int64_t flat) {
  __syncwarp();
  for (int i = static_cast<int>(threadIdx.x % 32); i < channels * columns; i += 32) {
    const int c = i / columns, at = i % columns;
    float& value = stage[c * stage_pitch + at];
    if (!isfinite(value)) value = plain.at(image, channel + c, flat + at);
  }
}

/// The source of tile `index` of one group.
template <class T>
__device__ __forceinline__ BoxPlace<T> gather_source(const GatherPlan& plan, const T* data, int group, int64_t index) {
  const GroupProblem& p = plan.problem;
  const TilePlace place = tile_place(plan.tiles, plan.tile.positions, static_cast<uint32_t>(index));
  return tile_source(p, place, data, int64_t{group} * p.source_channels, p.source_channels);
}

/// Products of one pair of units, added to `part`. The row tiles of a warp are neighbours in the tile.
template <bool Split, int Step, class T, int RowTiles, int ColumnTiles>
__device__ __forceinline__ void multiply_units(float (&part)[RowTiles][ColumnTiles][4], const Unit* pair, const T* tile,
                                               int any_step, const float* weights, int low) {
  const int step = Step == 0 ? any_step : Step;
  const int4 units = *reinterpret_cast<const int4*>(pair);  // two units
  const T* one = ahead(tile, units.x);
  const T* two = ahead(tile, units.z);
  Operand<2, Split> b[ColumnTiles];
#pragma unroll
  for (int n = 0; n < ColumnTiles; ++n) {
    const float* at_weight[2] = {ahead(weights, units.y) + n * 32, ahead(weights, units.w) + n * 32};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      b[n].high[i] = __float_as_uint(at_weight[i][0]);
      if constexpr (Split) b[n].low[i] = __float_as_uint(at_weight[i][low]);
    }
  }
  Operand<4, Split> a[RowTiles];
#pragma unroll
  for (int j = 0; j < RowTiles; ++j) {
    a[j].set(0, device::to_accumulator(one[j * kSegment * step]));
    a[j].set(1, device::to_accumulator(one[(j * kSegment + 8) * step]));
    a[j].set(2, device::to_accumulator(two[j * kSegment * step]));
    a[j].set(3, device::to_accumulator(two[(j * kSegment + 8) * step]));
  }
  multiply_tiles<false, Split>(part, a, b);
}

/// Sums of one phase over all its units.
template <bool Split, int Step, class T, int RowTiles, int ColumnTiles>
__device__ __forceinline__ void sum_units(float (&sums)[RowTiles][ColumnTiles][4], const Unit* units, int count,
                                          const T* tile, int any_step, const float* weights, int low) {
  int done = 0;
  for (; done + 2 * kPromoteEvery <= count; done += 2 * kPromoteEvery) {
    float part[RowTiles][ColumnTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kPromoteEvery; ++k)
      multiply_units<Split, Step>(part, units + done + 2 * k, tile, any_step, weights, low);
    promote(sums, part);
  }
  if (done < count) {
    float part[RowTiles][ColumnTiles][4] = {};
#pragma unroll 1
    for (; done < count; done += 2) multiply_units<Split, Step>(part, units + done, tile, any_step, weights, low);
    promote(sums, part);
  }
}

/// Step: that of the width if it is 1 or 2, else 0.
template <class T, bool Split, int Step, int RowTiles, int ColumnTiles>
__global__ void __launch_bounds__(kGatherThreads)
    gather_kernel(const __grid_constant__ GatherPlan plan, const __grid_constant__ GatherArguments<T> arguments,
                  const __grid_constant__ PlainSumOf<T> plain_sum) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ uint64_t copied[2];
  const GroupProblem& p = plan.problem;
  const RowBox& box = plan.tile.box;
  const TilePitch<T> pitch(box);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int warps = static_cast<int>(blockDim.x / 32);
  const int taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
  const int zero_weight = taps * plan.channel_blocks * plan.result_tiles * 32;
  const int weight_words = zero_weight + plan.result_tiles * 32;
  const int phases = p.phases[0] * p.phases[1] * p.phases[2];
  const int run = kSegment * p.phases[2];      // result columns of one segment
  const int stage_pitch = RowTiles * run + 4;  // 4 modulo 16: pairs of channels fall on different banks

  auto* weights = reinterpret_cast<float*>(shared + plan.buffers * box.bytes);
  Unit* units = reinterpret_cast<Unit*>(weights + weight_words * (Split ? 2 : 1));
  int* starts = reinterpret_cast<int*>(units + plan.units);  // [phases]
  float* stage = reinterpret_cast<float*>(starts + (phases + 3) / 4 * 4) + warp * (ColumnTiles * 8 * stage_pitch);

  const int group = static_cast<int>(blockIdx.x) / plan.slots;
  const int64_t slot = static_cast<int>(blockIdx.x) % plan.slots;
  const int64_t result_plane = p.result_rows.plane_pitch;

  const auto barrier = static_cast<uint32_t>(__cvta_generic_to_shared(copied));
  box_barrier_init(barrier);
  box_barrier_init(barrier + 8);
  if (box.planes > p.source_channels) clear_tiles(shared, plan.buffers * box.bytes);
  __syncthreads();
  // Tile number `turn` of this block, if there is one, on its way to its buffer.
  const auto start = [&](int turn) {
    const int64_t index = slot + int64_t{turn} * plan.slots;
    if (index >= plan.tile_count) return false;
    const int buffer = turn % plan.buffers;
    start_box(shared + buffer * box.bytes, box, p.source_rows, gather_source(plan, arguments.source, group, index),
              barrier + buffer * 8);
    box_arrive(barrier + buffer * 8);
    return true;
  };
  start(0);
  fill_weights<Split>(weights, weight_words, plan, arguments.weight + group * p.weight_group);
  build_units<T>(units, starts, plan, zero_weight);
  __syncthreads();

  const int column_groups = plan.result_tiles / ColumnTiles;
  const int items = plan.row_groups * column_groups * p.phases[0] * p.phases[1];
  int turn = 0;
  for (int64_t index = slot; index < plan.tile_count; index += plan.slots, ++turn) {
    const int buffer = turn % plan.buffers;
    unsigned char* const here = shared + buffer * box.bytes;
    if (plan.buffers == 2 && start(turn + 1)) {
      box_wait<1>(barrier + buffer * 8, turn / 2);
    } else {
      box_wait<0>(barrier + buffer * 8, turn / plan.buffers);
    }
    const BoxPlace<T> source = gather_source(plan, arguments.source, group, index);
    if (finish_box(here, box, p.source_rows, source)) __syncthreads();
    const T* tile = reinterpret_cast<const T*>(here + box_shift(source));

    const TilePlace place = tile_place(plan.tiles, plan.tile.positions, static_cast<uint32_t>(index));
    T* result = arguments.result + (place.image * p.groups + group) * p.result_channels * result_plane;
    for (int item = warp; item < items; item += warps) {
      uint32_t w, h, d, column, at_phase;
      const uint32_t group_index =
          plan.by_depth.divide(plan.by_height.divide(plan.by_row.divide(static_cast<uint32_t>(item), w), h), d);
      const auto outer_phase = static_cast<int>(plan.by_column.divide(group_index, column));
      const auto phase_d = static_cast<int>(plan.by_phase.divide(static_cast<uint32_t>(outer_phase), at_phase));
      const auto phase_h = static_cast<int>(at_phase), column_group = static_cast<int>(column);
      const int q_d = static_cast<int>(d), q_h = static_cast<int>(h), q_w = static_cast<int>(w) * RowTiles * kSegment;
      const T* base = tile + q_d * p.step[0] * pitch.depth + q_h * p.step[1] * pitch.height + q_w * p.step[2];
      const int channel0 = column_group * ColumnTiles * 8;
      const int channels = min(ColumnTiles * 8, p.result_channels - channel0);

      bool finite = true;
      for (int phase_w = 0; phase_w < p.phases[2]; ++phase_w) {
        const int count =
            p.taps[0].count[phase_d] * p.taps[1].count[phase_h] * p.taps[2].count[phase_w] * plan.channel_blocks;
        const Unit* unit = units + starts[outer_phase * p.phases[2] + phase_w];
        float sums[RowTiles][ColumnTiles][4] = {};
        sum_units<Split, Step>(sums, unit, count, base + lane / 4 * p.step[2] + lane % 4 * pitch.channel, p.step[2],
                               weights + channel0 * 4 + lane, weight_words);

        float* staged = stage + lane % 4 * 2 * stage_pitch + lane / 4 * p.phases[2] + phase_w;
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
      }

      // The run of each channel, 32 neighbouring results at a time.
      const int at_d = (place.q0[0] + q_d) * p.phases[0] + phase_d;
      const int at_h = (place.q0[1] + q_h) * p.phases[1] + phase_h;
      const int at_w = (place.q0[2] + q_w) * p.phases[2];
      const int columns = at_d < p.result[0] && at_h < p.result[1] ? min(RowTiles * run, p.result[2] - at_w) : 0;
      const int64_t flat = (int64_t{at_d} * p.result[1] + at_h) * p.result[2] + at_w;
      if (!__all_sync(0xffffffffu, finite)) {
        repair(plain_sum, stage, stage_pitch, channels, columns, place.image, group * p.result_channels + channel0,
               flat);
      }
      __syncwarp();
      T* row = result + channel0 * result_plane + flat;
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
          *out = device::from_accumulator<T>(device::call_activation(arguments.activation, shifted));
        }
      }
      __syncwarp();  // the stage may be overwritten
    }
    __syncthreads();  // the tile may be overwritten
    if (plan.buffers == 1) start(turn + 1);
  }
}

}  // namespace halo::cuda::conv::small_groups
